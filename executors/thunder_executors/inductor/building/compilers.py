"""The compiler processes of a build, which are killed with all their child processes if the build fails."""

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

# Compiler messages and signals if the disk is full.
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "File size limit exceeded")


class StoppedError(Exception):
    """Raised if the build has ended, so that no further compiler is started."""


class Compilers:
    """The compiler processes of a build, run from several threads; each is a separate process group."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = Lock()

    def run(self, command: Sequence[str], folder: Path, what: str) -> None:
        """Run a compiler in a folder; `what` describes its input.

        Raises `CompilerFailed` with the compiler's message, and `OutOfDisk` if it had no space for its files.
        """
        process = self._start(command, folder)
        try:
            _, message = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            require_room(command[0], message, process.returncode)
            raise CompilerFailed(
                f"{command[0]} could not compile {what}: {first_error(message)}",
                fix="check the compiler and the space in the temporary folder, or leave out the executor inductor",
            )

    def _start(self, command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise StoppedError
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, process_group=0)  # noqa: S603
            self._running.add(process)
        return process

    def stop(self) -> None:
        """Kill all running compilers; `run` raises `StoppedError` from then on."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def compilers() -> Iterator[Compilers]:
    """Yield an object that runs compilers. Stop the compilers if the block raises, even if by `KeyboardInterrupt`."""
    running = Compilers()
    try:
        yield running
    except BaseException:
        running.stop()
        raise


def require_room(compiler: str, message: str, status: int) -> None:
    """Raise `OutOfDisk` if the message or the exit status of a failed compiler says that the disk was full."""
    reason = next((reason for reason in DISK_FULL if reason in message), "")
    if reason or status == -signal.SIGXFSZ:
        raise OutOfDisk(
            f"{compiler} could not write its output: {reason or DISK_FULL[-1]}",
            fix="free space in the temporary folder, set another one with TMPDIR, or raise `ulimit -f`",
        )
