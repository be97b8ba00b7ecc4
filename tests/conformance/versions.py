"""`python -m tests.conformance.versions [--jobs N]`: the table of conformance for every Python that is found here."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conformance.runner import ROOT

VERSIONS = ("3.11", "3.12", "3.13")


def found(version: str) -> str | None:
    """An interpreter of this version that runs and has the standard library's tests: on PATH, or one of pyenv's."""
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


def main() -> int:
    """Run each version in turn, print its table, and say which were not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.versions")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--allow-missing", nargs="*", default=[], metavar="VERSION", help="versions that may be missing"
    )
    options = parser.parse_args()
    summary: list[str] = []
    good = True
    for version in VERSIONS:
        path = found(version)
        if path is None:
            allowed = version in options.allow_missing or not os.environ.get("CI")
            good &= allowed
            summary.append(
                f"Python {version}: NOT FOUND{'' if allowed else ', and CI was not told that it may be missing'}"
            )
            continue
        command = [path, "-m", "tests.conformance", "--jobs", str(options.jobs)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr, sep="", flush=True)
        good &= done.returncode == 0
        last = done.stdout.rstrip().rpartition("\n")[2].split()
        share = f"{last[2]} of {last[1]} pass inside, {last[3]}" if last[:1] == ["all"] else "DID NOT END"
        verdict = "" if done.returncode == 0 else ", NOT as the list of known failures says"
        summary.append(f"Python {version}: {share}{verdict}")
    print(*summary, sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
