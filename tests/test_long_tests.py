"""tests/long.txt names tests and files that exist, and is written from the times of a run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import FIXTURE_SECONDS, LONG, SECONDS, SETUP
from tests.long_tests import long_tests, times

REPORT = f"""<testsuites><testsuite name="pytest">
<testcase classname="tests.test_long_tests" name="test_slow[a]" time="4.5"><properties>
<property name="{SETUP}" value="3.0"/></properties></testcase>
<testcase classname="tests.test_long_tests.TestClass" name="test_fast" time="0.1"/>
<testcase classname="tests.test_long_tests" name="test_on_a_gpu" time="0.0"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


def test_each_long_test_and_file_is_defined() -> None:
    sources: dict[str, str] = {}
    for name in LONG.read_text().splitlines():
        file, *path = name.partition("[")[0].split("::")
        text = sources.setdefault(file, (LONG.parent.parent / Path(file)).read_text())
        assert not path or re.search(rf"^ *def {path[-1]}\(", text, re.MULTILINE), name


def test_the_times_of_tests_that_ran_have_the_names_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    slow, fast = "tests/test_long_tests.py::test_slow[a]", "tests/test_long_tests.py::TestClass::test_fast"
    assert times([tmp_path / "report.xml"]) == {slow: 1.5, fast: 0.1, "tests/test_long_tests.py": 3.0}


def test_a_listed_test_stays_unless_a_run_was_clearly_faster() -> None:
    measured = {"::near": 0.9 * SECONDS, "::fast": 0.1 * SECONDS, "::slow": SECONDS, "::almost": 0.99 * SECONDS}
    assert long_tests({"::near", "::fast", "::not in the run"}, measured) == ["::near", "::not in the run", "::slow"]


def test_a_file_is_listed_if_its_fixtures_are_slow() -> None:
    measured = {"tests/slow.py": FIXTURE_SECONDS, "tests/fast.py": SECONDS}
    assert long_tests({"tests/other.py"}, measured) == ["tests/other.py", "tests/slow.py"]
