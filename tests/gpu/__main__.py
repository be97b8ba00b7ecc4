"""Run the tests that are marked `gpu`, each file in a separate process, and write a JUnit file.

`python -m tests.gpu [FILE ...]`: a warning, a file that cannot be collected, or a test that hangs or crashes its
process does not stop the other tests. The results are written to the folder `$OUT`, or to `build/gpu-report`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.recorder import VARIABLE
from tests.gpu.results import Result, count, is_finished, read_events, results_of, write_junit
from tests.gpu.wheels import ROOT, SITE

REPORT = ROOT / "build" / "gpu-report"
PATHS = (ROOT, ROOT / "executors", ROOT / "recipes", SITE)
PYTEST = ("-m", "gpu", "-p", "tests.gpu.recorder", "-p", "no:cacheprovider", "-ra", "--import-mode=importlib")
NO_DEMANDS = ("-o", "addopts=", "-o", "filterwarnings=", "-o", "xfail_strict=false")
NOTHING_RAN = 5  # pytest returns the same status


@dataclass(frozen=True)
class Limits:
    """The limits in seconds of a test, of the process of a file, and of all files."""

    test: float = 120.0
    file: float = 300.0
    total: float = 540.0


def gpu_files(folder: Path) -> Iterator[Path]:
    """The files that mark a test with `gpu`, found in their source."""
    for path in sorted(folder.rglob("test_*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.gpu" for node in nodes):
            yield path


def run_files(files: Iterable[Path], limits: Limits) -> Iterator[Result]:
    """The results of each file in turn. A file for which no time is left is an error."""
    deadline = time.monotonic() + limits.total
    for file in files:
        if time.monotonic() > deadline:
            yield Result(name_of(file), "error", 0.0, f"not run: the {limits.total:g} seconds for all were used up")
        else:
            yield from run_file(file, limits, deadline)


def run_file(file: Path, limits: Limits, deadline: float) -> list[Result]:
    """The results of one file. If a test ends the process, the other tests run in a new one."""
    results: list[Result] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "events.jsonl"
            end = run_pytest(file, limits, record, but=[result.test for result in results], deadline=deadline)
            events = read_events(record)
        found = results_of(events, end)
        results += found
        if is_finished(events):
            return results
        if not found or time.monotonic() > deadline:
            return [*results, Result(name_of(file), "error", 0.0, end)]


def run_pytest(file: Path, limits: Limits, record: Path, *, but: Sequence[str], deadline: float) -> str:
    """Run the tests of one file except the given ones, and return in words how the process ended."""
    seconds = max(1.0, min(limits.file, deadline - time.monotonic()))
    left_out = [word for test in but for word in ("--deselect", test)]
    command = [sys.executable, "-m", "pytest", str(file), *PYTEST, *NO_DEMANDS, *limiting(limits.test), *left_out]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(record), start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it ran past {seconds:g} seconds, and its process was ended"
    return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


def limiting(seconds: float) -> list[str]:
    """The options that limit the time of a test. Without the plug-in only the limit of the file applies."""
    here = importlib.util.find_spec("pytest_timeout") or (SITE / "pytest_timeout.py").exists()
    return ["--timeout", str(seconds), "--timeout-method", "signal"] if here else []


def environment(record: Path) -> dict[str, str]:
    """The environment of a process that runs tests: the project, the installed wheels, and the record."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = dict.fromkeys((*map(str, PATHS), *before))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: str(record)}


def name_of(file: Path) -> str:
    """The name of a file in the names of tests."""
    return file.resolve().relative_to(ROOT).as_posix() if file.resolve().is_relative_to(ROOT) else str(file)


def summary(results: Sequence[Result]) -> str:
    """The names of the bad results, and the number of results of each outcome."""
    bad = [f"{result.outcome:8} {result.test}" for result in results if result.outcome in ("failed", "error")]
    counts = [f"{count(results, outcome)} {outcome}" for outcome in ("passed", "failed", "error", "skipped")]
    return "\n".join([*bad, ", ".join(counts)])


def status_of(results: Sequence[Result]) -> int:
    """Return 0 if tests ran and all of them passed."""
    if count(results, "failed") or count(results, "error"):
        return 1
    return 0 if count(results, "passed") else NOTHING_RAN


def main() -> int:
    """Run the tests, print and write their results, and return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="instead of all files")
    parser.add_argument("--test", type=float, default=Limits.test, help="seconds for a test")
    parser.add_argument("--file", type=float, default=Limits.file, help="seconds for the process of a file")
    parser.add_argument("--total", type=float, default=Limits.total, help="seconds for all")
    arguments = parser.parse_args()
    files = [path.resolve() for path in arguments.files] or [*gpu_files(ROOT / "tests")]
    results = [*run_files(files, Limits(arguments.test, arguments.file, arguments.total))]
    junit = Path(os.environ.get("OUT") or REPORT) / "gpu-tests.xml"
    write_junit(results, junit)
    print(f"{summary(results)}\n{junit}")
    return status_of(results)


if __name__ == "__main__":
    sys.exit(main())
