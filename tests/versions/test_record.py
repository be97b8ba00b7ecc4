"""Runs of tests are recorded with their versions and counts, and the page shows the records."""

from __future__ import annotations

import json

import torch

from docs import versions as page
from tests.versions.record import Record, main, read_records, with_record, write_records
from thunder_core.foundation.tested_versions import TESTED, release_of, text_of

RECORD = Record("2026-01-02", "3.11.7", "2.14.1", "-", "5.23.0", "tests/ir", 10, 1, 2)
CASES = {"passed": 4, "<failure/>": 2, "<error/>": 1, "<skipped/>": 3}
JUNIT = "<testsuites><testsuite name='pytest'>{}</testsuite></testsuites>".format(
    "".join(f"<testcase classname='tests' name='one'>{kind}</testcase>" * count for kind, count in CASES.items())
).replace("passed", "")


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "run `make docs`"


def test_counts_of_a_run_are_added_to_the_file(tmp_path):
    junit, file = tmp_path / "junit.xml", tmp_path / "versions.json"
    junit.write_text(JUNIT)
    write_records([RECORD], file)
    main(["tests/ir", "tests/cache", "--junit", str(junit)], file)
    earlier, added = read_records(file)
    assert earlier == RECORD
    assert (added.passed, added.failed, added.skipped) == (4, 3, 3)
    assert added.torch == torch.__version__.partition("+")[0]
    assert added.tests == "tests/ir tests/cache"


def test_tests_are_run_and_counted(tmp_path):
    tests = tmp_path / "test_of_three.py"
    tests.write_text("import pytest\n\ndef test_a(): ...\n\ndef test_b(): assert 0\n\ndef test_c(): pytest.skip()\n")
    file = tmp_path / "versions.json"
    main([str(tests), "--", "-p", "no:xdist"], file)
    (added,) = read_records(file)
    assert (added.passed, added.failed, added.skipped) == (1, 1, 1)


def test_later_run_of_the_same_tests_replaces_the_earlier_run():
    later = Record(**{**RECORD.__dict__, "date": "2026-02-03", "failed": 0, "passed": 11})
    other = Record(**{**RECORD.__dict__, "torch": "2.11.0"})
    assert with_record([RECORD, other], later) == [other, later]


def test_a_record_is_one_line_of_the_file(tmp_path):
    file = tmp_path / "versions.json"
    write_records([RECORD, RECORD], file)
    assert [json.loads(line.rstrip(",")) for line in file.read_text().splitlines()[1:-1]] == [RECORD.__dict__] * 2


def test_page_lists_newest_pytorch_first_and_compares_releases_as_numbers():
    older = Record(**{**RECORD.__dict__, "torch": "2.9.0"})
    rows = [line for line in page.render([older, RECORD]).splitlines() if "tests/ir" in line]
    assert ["2.14.1" in row for row in rows] == [True, False]


def test_oldest_and_newest_release_of_pytorch_have_records():
    recorded = {release_of(record.torch) for record in read_records()}
    assert {TESTED["torch"].oldest, TESTED["torch"].newest} <= recorded, text_of(TESTED["torch"].newest)
