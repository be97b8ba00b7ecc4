"""The compilers that run for a build: whoever ends the build ends them, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from thunder_core.foundation.errors import CompilerFailed, OutOfDisk
from thunder_core.tracing.extension.requirement import first_error

# What a compiler says, or what stops one, where the disk takes no more.
FULL = ("No space left on device", "Disk quota exceeded", "File too large", "File size limit exceeded")


class StoppedError(Exception):
    """The build has been ended, so that no compiler is started any more."""


class Compilers:
    """The compilers that run for one build, in as many threads; each is a process group of its own."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = Lock()

    def run(self, command: Sequence[str], folder: Path, what: str) -> None:
        """Run a compiler in a folder; `what` is what it compiles.

        Raises `CompilerFailed` with what the compiler said, and `OutOfDisk` where it had no room for its files.
        """
        process = self._started(command, folder)
        try:
            _, told = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            require_room(command[0], told, process.returncode)
            raise CompilerFailed(
                f"{command[0]} could not compile {what}: {first_error(told)}",
                fix="check the compiler and the space in the temporary folder, or leave out the executor inductor",
            )

    def _started(self, command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise StoppedError
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, process_group=0)  # noqa: S603
            self._running.add(process)
        return process

    def stop(self) -> None:
        """Kill all that run, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def compilers() -> Iterator[Compilers]:
    """Compilers for the block; where it is left by an error, as by Ctrl-C, they are stopped."""
    running = Compilers()
    try:
        yield running
    except BaseException:
        running.stop()
        raise


def require_room(compiler: str, told: str, status: int) -> None:
    """Raise `OutOfDisk` for a compiler that failed because its files found no room."""
    reason = next((reason for reason in FULL if reason in told), "")
    if reason or status == -signal.SIGXFSZ:
        raise OutOfDisk(
            f"{compiler} could not write its output: {reason or FULL[-1]}",
            fix="free space in the temporary folder, set another one with TMPDIR, or raise `ulimit -f`",
        )
