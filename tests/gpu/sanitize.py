"""Run the examples of all Triton kernels under NVIDIA's compute-sanitizer: `python -m tests.gpu.sanitize`.

`memcheck` finds reads and writes outside of allocated memory, in all kernels. PyTorch's allocator is switched off, so
that each tensor is an allocation of its own. `racecheck` finds threads that use shared memory without a barrier, in the
kernels that combine partial results: attention, and products whose depth is divided. Each operation has a process of
its own. The results are written to `sanitizer.json` in the folder `$OUT`, or in `build/gpu-report`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.executors.triton.examples import EXAMPLES
from tests.gpu.__main__ import JOBS, REPORT, environment
from tests.gpu.wheels import ROOT

SANITIZER = "compute-sanitizer"
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")
RACING = ("decode_attention", "int8_linear", "int4_linear", "normalized_linear", "normalized_gated")
FOUND = 99  # the exit status that is requested for errors
LIMIT_SECONDS = 540.0  # for all processes
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
NO_CACHING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class Checked:
    """The result of a tool for the examples of an operation; `errors` is None if the tool did not finish."""

    tool: str
    operation: str
    errors: int | None
    seconds: float
    text: str = ""


def find_sanitizer() -> str | None:
    """The path of compute-sanitizer, or None."""
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=os.pathsep.join(FOLDERS))


def jobs(operations: Sequence[str]) -> list[tuple[str, str]]:
    """The tools with the operations that they check."""
    return [
        *(("memcheck", name) for name in operations),
        *(("racecheck", name) for name in RACING if name in operations),
    ]


def check(job: tuple[str, str], sanitizer: str, device: str, deadline: float) -> Checked:
    """Run the examples of an operation under a tool."""
    tool, name = job
    began = time.monotonic()
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "10"]
    examples = [sys.executable, "-m", "tests.gpu.run_examples", name, "--device", device]
    try:
        done = subprocess.run(
            [*command, *examples],
            cwd=ROOT,
            env={**environment(), **NO_CACHING},
            capture_output=True,
            text=True,
            timeout=max(1.0, deadline - began),
        )
    except subprocess.TimeoutExpired:
        return Checked(tool, name, None, time.monotonic() - began, "the time for all was used up")
    output = done.stdout + done.stderr
    counts = [int(errors or hazards) for errors, hazards in SUMMARY.findall(output)]
    errors = sum(counts) if counts and done.returncode in (0, FOUND) else None
    return Checked(tool, name, errors, time.monotonic() - began, "" if errors == 0 else output[-3000:])


def line_of(checked: Checked) -> str:
    """A row of the table."""
    result = "did not finish" if checked.errors is None else f"{checked.errors} errors"
    return f"{checked.tool:10} {checked.operation:32} {result:16} {checked.seconds:6.1f} s"


def main() -> int:
    """Check all kernels, print a row for each, write the results, and return 1 if there are errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help="instead of all operations")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all")
    options = parser.parse_args()
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print(
            f"{SANITIZER} is not installed; it is a part of the CUDA toolkit (looked in PATH and {', '.join(FOLDERS)})"
        )
        return 1
    run = partial(check, sanitizer=sanitizer, device=options.device, deadline=time.monotonic() + options.limit)
    with ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(run, jobs(options.operations or list(EXAMPLES))))
    print("\n".join(map(line_of, results)))
    path = Path(os.environ.get("OUT") or REPORT) / "sanitizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    print(path)
    return int(any(result.errors != 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
