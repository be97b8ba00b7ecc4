"""Run a module of tests in separate processes, natively and in the interpreter, and compare the outcomes."""

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
    """The tests of one module that pass natively, and the failures in the interpreter with their reasons."""

    module: str
    native: frozenset[str]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """The number of tests that pass natively and in the interpreter."""
        return len(self.native) - len(self.failures)


def _once(module: str, inside: bool, skip: list[str]) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Run a module once; return the outcomes, and the test in which the process died, if any."""
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
    """Return the outcome of each test; a test that kills the process does not affect other tests."""
    found: dict[str, tuple[str, str]] = {}
    while True:
        outcomes, died = _once(module, inside, list(found))
        found.update(outcomes)
        if died is None or not outcomes:
            return found


def compare(module: str) -> Result:
    """Run a module natively and in the interpreter."""
    native = frozenset(name for name, (what, _) in outcomes_of(module, inside=False).items() if what == "pass")
    inside = outcomes_of(module, inside=True)
    failures = {
        name: inside.get(name, ("missing", ""))[1] for name in sorted(native) if inside.get(name, ("",))[0] != "pass"
    }
    return Result(module, native, failures)
