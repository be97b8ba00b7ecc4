"""Runs a module of tests in processes of its own, natively and inside, and compares."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SECONDS = 1200


@dataclass(frozen=True)
class Result:
    """The tests of one module that pass natively, and why some of them do not pass inside."""

    module: str
    native: frozenset[str]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """How many of the tests that pass natively pass inside."""
        return len(self.native) - len(self.failures)


def _once(module: str, inside: bool, skip: list[str]) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Run a module once: the outcomes, and the test in which the process died, if it did."""
    command = [sys.executable, "-m", "tests.conformance.child", module]
    command += ["--inside"] if inside else []
    command += ["--skip", *skip] if skip else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            output = done.stdout
            note = done.stderr
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            note = "timed out"
    outcomes: dict[str, tuple[str, str]] = {}
    running: str | None = None
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if "start" in event:
            running = event["start"]
        else:
            outcomes[event["test"]] = event["outcome"], event["why"]
            running = None
    if running is not None:
        outcomes[running] = "crash", note[-3000:]
    return outcomes, running


def outcomes_of(module: str, inside: bool) -> dict[str, tuple[str, str]]:
    """The outcome of each test; a test that kills the process costs that test alone."""
    found: dict[str, tuple[str, str]] = {}
    while True:
        outcomes, died = _once(module, inside, list(found))
        found.update(outcomes)
        if died is None or not outcomes:
            return found


def compare(module: str) -> Result:
    """Run a module natively and inside."""
    native = frozenset(name for name, (what, _) in outcomes_of(module, inside=False).items() if what == "pass")
    inside = outcomes_of(module, inside=True)
    failures = {
        name: inside.get(name, ("missing", ""))[1] for name in sorted(native) if inside.get(name, ("",))[0] != "pass"
    }
    return Result(module, native, failures)
