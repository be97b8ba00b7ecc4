"""Run the tests marked `gpu` and the tests of the Triton kernels on a GPU, and write their results as a JUnit file.

`python -m tests.gpu [FILE ...]`: each file has a separate process, and files run side by side. A warning, a file that
cannot be collected, or a test that hangs or crashes its process does not stop the other tests. Without FILE, a trial
runs first: if a small module cannot be compiled, no test runs, and no JUnit file is written. With FILE, only its tests
marked `gpu` run. The results are written to the folder `$OUT`, or to `build/gpu-report`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.gpu.recorder import FINISHED, SHARD, VARIABLE
from tests.gpu.results import Result, count, is_finished, read_events, results_of, write_junit
from tests.gpu.wheels import ROOT, SITE

REPORT = ROOT / "build" / "gpu-report"
PATHS = (ROOT, ROOT / "executors", ROOT / "recipes", SITE)
PYTEST = ("-p", "tests.gpu.recorder", "-p", "no:cacheprovider", "-ra", "--import-mode=importlib")
MARKED = ("-m", "gpu")
KERNELS = ("-m", "not gpu", "--noconftest", "-p", "tests.gpu.kernels")  # the folder's conftest enables the interpreter
NO_DEMANDS = ("-o", "addopts=", "-o", "filterwarnings=", "-o", "xfail_strict=false")
NOTHING_RAN = 5  # pytest returns the same status
SHARDS = {"tests/gpu/test_models_on_gpu.py": 6, "tests/gpu/test_commands_on_gpu.py": 5}  # processes for a long file
# The files of tests that time kernels.
ALONE = (
    "tests/benchmark/test_measurement.py",
    "tests/executors/triton/test_normalized_linear.py",
    "tests/executors/triton/test_decode_attention.py",
)
WITH_STAND_INS = ("test_cubin", "test_driver", "test_launch", "test_weights")  # tests with a stand-in for it
JOBS = max(1, min(8, (os.cpu_count() or 1) // 2))
TRIAL_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    """The limits in seconds of a test, of the process of a file, and of all files."""

    test: float = 120.0
    file: float = 300.0
    total: float = 540.0


@dataclass(frozen=True)
class Job:
    """The tests of one file that one process runs: those that pytest's options select, or one shard of them."""

    file: Path
    options: tuple[str, ...] = MARKED
    shard: str = "0/1"


def gpu_files(folder: Path) -> Iterator[Path]:
    """The files that mark a test with `gpu`, found in their source."""
    for path in sorted(folder.rglob("test_*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.gpu" for node in nodes):
            yield path


def kernel_files(folder: Path) -> Iterator[Path]:
    """The files that compare Triton kernels with references on tensors that `closeness.draw` makes."""
    for path in sorted(folder.glob("test_*.py")):
        if path.stem not in WITH_STAND_INS and "closeness import" in path.read_text("utf-8"):
            yield path


def jobs_of(files: Iterable[Path]) -> Iterator[Job]:
    """The jobs of files with marked tests; a long file has several."""
    for file in files:
        shards = SHARDS.get(name_of(file), 1)
        yield from (Job(file, shard=f"{number}/{shards}") for number in range(shards))


def run_jobs(jobs: Sequence[Job], limits: Limits, side_by_side: int = JOBS) -> Iterator[Result]:
    """The results of all jobs. Those that time kernels run after the others, one by one."""
    deadline = time.monotonic() + limits.total
    run = partial(run_job, limits=limits, deadline=deadline)
    with ThreadPoolExecutor(side_by_side) as pool:
        for results in pool.map(run, [job for job in jobs if name_of(job.file) not in ALONE]):
            yield from results
    for job in jobs:
        if name_of(job.file) in ALONE:
            yield from run(job)


def run_job(job: Job, limits: Limits, deadline: float) -> list[Result]:
    """The results of a job. If a test ends the process, the other tests run in a new one."""
    if time.monotonic() > deadline:
        text = f"not run: the {limits.total:g} seconds for all were used up"
        return [Result(name_of(job.file), "error", 0.0, text)]
    results: list[Result] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "events.jsonl"
            end = run_pytest(job, limits, record, finished=[result.test for result in results], deadline=deadline)
            events = read_events(record)
        found = results_of(events, end)
        results += found
        if is_finished(events):
            return results
        if not found or time.monotonic() > deadline:
            return [*results, Result(name_of(job.file), "error", 0.0, end)]


def run_pytest(job: Job, limits: Limits, record: Path, *, finished: Sequence[str], deadline: float) -> str:
    """Run the tests of a job except the finished ones, and return a sentence that says how the process ended."""
    seconds = max(1.0, min(limits.file, deadline - time.monotonic()))
    options = [*job.options, *PYTEST, *NO_DEMANDS, *limiting(limits.test)]
    command = [sys.executable, "-m", "pytest", str(job.file), *options]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(), VARIABLE: str(record), SHARD: job.shard, FINISHED: json.dumps(finished)},
        start_new_session=True,
    )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"it ran past {seconds:g} seconds, and its process was ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also processes that it has left
        process.wait()
    return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


def limiting(seconds: float) -> list[str]:
    """The options that limit the time of a test. Without the plug-in only the limit of the file applies."""
    here = importlib.util.find_spec("pytest_timeout") or (SITE / "pytest_timeout.py").exists()
    return ["--timeout", str(seconds), "--timeout-method", "signal"] if here else []


def environment() -> dict[str, str]:
    """The environment of a process that runs tests: the project and the installed wheels."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = dict.fromkeys((*map(str, PATHS), *before))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def trial_fails() -> bool:
    """Whether a small module cannot be compiled here; the trial prints why."""
    command = [sys.executable, "-m", "tests.gpu.trial"]
    try:
        return subprocess.run(command, cwd=ROOT, env=environment(), timeout=TRIAL_SECONDS).returncode != 0
    except subprocess.TimeoutExpired:
        print(f"the trial took more than {TRIAL_SECONDS:g} seconds")
        return True


def name_of(file: Path) -> str:
    """The path of a file in pytest's names of tests: relative to the repository."""
    return file.resolve().relative_to(ROOT).as_posix() if file.resolve().is_relative_to(ROOT) else str(file)


def summary(results: Sequence[Result]) -> str:
    """The names of the bad results, and the number of results of each outcome."""
    bad = [f"{result.outcome:8} {result.test}" for result in results if result.outcome in ("failed", "error")]
    counts = [f"{count(results, outcome)} {outcome}" for outcome in ("passed", "failed", "error", "skipped")]
    return "\n".join([*bad, ", ".join(counts)])


def status_of(results: Sequence[Result]) -> int:
    """Return 1 if a test failed, 0 if tests passed and none failed, and 5 if no test passed."""
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
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes side by side")
    arguments = parser.parse_args()
    jobs = [*jobs_of(path.resolve() for path in arguments.files or gpu_files(ROOT / "tests"))]
    if not arguments.files:
        if trial_fails():
            return 1
        jobs += [Job(file, KERNELS) for file in kernel_files(ROOT / "tests" / "executors" / "triton")]
    results = [*run_jobs(jobs, Limits(arguments.test, arguments.file, arguments.total), arguments.jobs)]
    junit = Path(os.environ.get("OUT") or REPORT) / "gpu-tests.xml"
    write_junit(results, junit)
    print(f"{summary(results)}\n{junit}")
    return status_of(results)


if __name__ == "__main__":
    sys.exit(main())
