"""`python -m tests.conformance.versions [--jobs N]`: print the table of conformance for each installed Python."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conformance.runner import ROOT

VERSIONS = ("3.11", "3.12", "3.13")


def find_interpreter(version: str) -> str | None:
    """Find an interpreter of this version with the standard library's tests, on PATH or in pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    return next((path for path in candidates if path is not None and _is(path, version)), None)


def _is(path: str, version: str) -> bool:
    """Whether a path is an interpreter of this version with the standard library's tests."""
    question = "import sys, test.test_grammar; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def run(path: str, jobs: int) -> subprocess.CompletedProcess[str]:
    """Run the suite under one interpreter, with this number of processes."""
    command = [path, "-m", "tests.conformance", "--jobs", str(jobs)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def verdict(done: subprocess.CompletedProcess[str]) -> tuple[bool, str]:
    """Print the table of a version; return whether exactly the known failures fail, and the share of passed tests."""
    print(done.stdout, done.stderr, sep="", flush=True)
    last = done.stdout.rstrip().rpartition("\n")[2].split()
    share = f"{last[2]} of {last[1]} pass inside, {last[3]}" if last[:1] == ["all"] else "DID NOT END"
    return not done.returncode, share + (", NOT as the list of known failures says" if done.returncode else "")


def judge_missing(version: str, allowed: Sequence[str]) -> tuple[bool, str]:
    """Return whether a missing version is acceptable, and a sentence about it."""
    passed = version in allowed or not os.environ.get("CI")
    return passed, f"NOT FOUND{'' if passed else ', and --allow-missing does not name it'}"


def main() -> int:
    """Run the versions in parallel, print the table of each, and report missing versions."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.versions")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--allow-missing", nargs="*", default=[], metavar="VERSION", help="versions that may be missing"
    )
    options = parser.parse_args()
    paths = {version: find_interpreter(version) for version in VERSIONS}
    jobs = max(1, round(options.jobs / max(1, sum(path is not None for path in paths.values()))))
    summary: list[str] = []
    good = True
    with ThreadPoolExecutor(len(VERSIONS)) as pool:  # in parallel: the last modules of one version leave no core idle
        done = {version: pool.submit(run, path, jobs) for version, path in paths.items() if path is not None}
        for version in VERSIONS:
            passed, message = (
                verdict(done[version].result()) if version in done else judge_missing(version, options.allow_missing)
            )
            good &= passed
            summary.append(f"Python {version}: {message}")
    print(*summary, sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
