"""The runner of GPU tests: the files that it finds, the wheels that it installs, and its handling of failing files."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.gpu import wheels
from tests.gpu.__main__ import Job, Limits, gpu_files, jobs_of, kernel_files, main, run_jobs, status_of, summary
from tests.gpu.results import Result, write_junit
from tests.gpu.wheels import ROOT, name_of, present

BAD = """
import os, pytest, signal, time, warnings
pytestmark = pytest.mark.gpu

def test_good(): pass
def test_bad(): assert 1 == 2
def test_warns(): warnings.warn("nothing of it")
@pytest.mark.parametrize("name", ["c::d"])
def test_crashes(name): os.kill(os.getpid(), signal.SIGKILL)
def test_leaves(): os._exit(0)
def test_hangs(): time.sleep(60)
def test_skips(): pytest.skip("no reason")
@pytest.fixture
def broken(): raise RuntimeError("\\x1b[1m broken")
def test_errs(broken): pass
@pytest.mark.xfail(reason="known")
def test_known(): assert False
def test_last(): pass
"""
UNREADABLE = "import a_module_that_nobody_has\nimport pytest\npytestmark = pytest.mark.gpu\n"
GOOD = "import pytest\n@pytest.mark.gpu\ndef test_it(): pass\ndef test_other(): raise SystemExit\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("bad", BAD), ("unreadable", UNREADABLE), ("zgood", GOOD), ("plain", "def test_it(): pass\n")):
        (tmp_path / f"test_{name}.py").write_text(text)
    return tmp_path


def test_files_with_the_mark_are_found(folder: Path) -> None:
    assert [path.stem for path in gpu_files(folder)] == ["test_bad", "test_unreadable", "test_zgood"]
    found = {path.relative_to(ROOT).as_posix() for path in gpu_files(ROOT / "tests")}
    assert {"tests/acquire/test_training_gpu.py", "tests/pipeline/test_placement.py"} <= found
    assert "tests/gpu/test_gpu.py" not in found


def test_failing_files_do_not_stop_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, gpu_files(folder)), "--test", "2"])
    assert main() == 1
    tree = ET.parse(tmp_path / "out" / "gpu-tests.xml")
    outcomes = {
        case.get("name").rpartition("/")[2]: (
            case[0].tag if len(case) else "passed",
            case[0].get("message") if len(case) else "",
        )
        for case in tree.iter("testcase")
    }
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_good": "passed",
        "test_bad": "failure",
        "test_warns": "passed",
        "test_crashes[c::d]": "error",
        "test_leaves": "error",
        "test_hangs": "failure",
        "test_skips": "skipped",
        "test_errs": "error",
        "test_known": "skipped",
        "test_last": "passed",
        "test_unreadable.py": "error",
        "test_it": "passed",
    }
    assert "signal 9 while it ran" in outcomes["test_crashes[c::d]"][1]
    assert "status 0 while it ran" in outcomes["test_leaves"][1]
    assert "Timeout" in outcomes["test_hangs"][1]


def test_a_file_that_hangs_is_ended_and_time_for_all_is_kept(tmp_path: Path) -> None:
    hanging, never = tmp_path / "test_hanging.py", tmp_path / "test_never.py"
    hanging.write_text("import time\ntime.sleep(60)\n")
    never.write_text("raise AssertionError('it was run')\n")
    before = time.monotonic()
    jobs = [Job(hanging), Job(never)]
    results = [*run_jobs(jobs, Limits(test=1.0, file=3.0, total=2.0), side_by_side=1)]
    assert time.monotonic() - before < 20
    assert [result.outcome for result in results] == ["error", "error"]
    assert "ran past" in results[0].text
    assert "not run" in results[1].text


def test_a_long_file_is_run_in_shards_which_together_run_each_test_once(tmp_path: Path) -> None:
    counted = ROOT / "tests" / "gpu" / "test_models_on_gpu.py"
    assert len([*jobs_of([counted, tmp_path])]) == 7
    file = tmp_path / "test_many.py"
    file.write_text("import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('n', range(5))\ndef test_it(n): pass\n")
    jobs = [Job(file, shard=f"{number}/2") for number in range(2)]
    results = [*run_jobs(jobs, Limits(), side_by_side=2)]
    assert sorted(result.test[-2] for result in results) == [*"01234"]
    assert {result.outcome for result in results} == {"passed"}


def test_kernels_are_tested_on_the_gpu_where_the_interpreter_tests_them() -> None:
    names = {path.stem for path in kernel_files(ROOT / "tests" / "executors" / "triton")}
    assert {"test_rms_norm", "test_quantized_linear", "test_cached_rotary"} <= names
    assert "test_cubin" not in names


def test_the_status_is_zero_only_if_tests_ran() -> None:
    passed, skipped = Result("a", "passed"), Result("b", "skipped")
    assert [status_of(row) for row in ([passed, skipped], [skipped], [], [passed, Result("c", "error")])] == [
        0,
        5,
        5,
        1,
    ]
    assert summary([passed, Result("x.py::c", "failed")]) == "failed   x.py::c\n1 passed, 1 failed, 0 error, 0 skipped"


def test_junit_counts_by_file(tmp_path: Path) -> None:
    write_junit(
        [Result("a.py::x", "failed", 1.5, "bad\x00"), Result("a.py::y", "passed"), Result("b.py", "error")],
        tmp_path / "r",
    )
    suites = {suite.get("name"): suite.attrib for suite in ET.parse(tmp_path / "r").iter("testsuite")}
    assert (suites["a.py"]["tests"], suites["a.py"]["failures"], suites["b.py"]["errors"]) == ("2", "1", "1")


def test_installed_packages_are_known_by_normalized_names(tmp_path: Path) -> None:
    (tmp_path / "Carried_Before.Now-1.0.dist-info").mkdir()
    assert {"pytest", "typing-extensions", "carried-before-now"} <= present(tmp_path)
    assert name_of(tmp_path / "Of_Another.World-1.0-py3-none-any.whl") not in present(tmp_path)


def test_packages_that_are_neither_installed_nor_carried_are_reported(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(wheels, "NAMES", ("pytest", "of-another-world"))
    wheels.install(tmp_path, tmp_path)
    assert "lacking here, and not in" in capsys.readouterr().out
    monkeypatch.setattr(wheels, "NAMES", ("pytest",))
    wheels.install(tmp_path, tmp_path)
    assert capsys.readouterr().out == ""


def test_installing_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried, site = tmp_path / "wheels", tmp_path / "site"
    carried.mkdir()
    name = "thunder_carried_example"
    with zipfile.ZipFile(carried / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "VALUE = 3\n")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    wheels.install(carried, site)
    code = f"import sys; sys.path.append({str(site)!r}); import {name}; assert {name}.VALUE == 3"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setattr(subprocess, "run", None)
    wheels.install(carried, site)  # the package is installed


def test_every_dependency_is_carried_or_expected_on_such_machines() -> None:
    import tomllib

    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {
        wheels.normal("".join(c for c in dependency.split(">")[0] if c.isalnum() or c in "-_."))
        for dependency in dependencies
    }
    brought = {"torch", "transformers", "numpy", "scipy", "matplotlib", "safetensors", "huggingface-hub"}
    assert names - brought <= set(wheels.NAMES)
