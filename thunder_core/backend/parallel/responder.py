"""A thread that answers the questions of other ranks about the programs that this rank runs.

The main thread cannot answer while it waits in a collective for the rank that asks. A finalizer of `multiprocessing`
ends the thread, because processes that `multiprocessing` has started do not call the functions of `atexit`.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from threading import Event, Thread

PAUSE = 0.25  # seconds between two calls of the function
PATIENCE = 2.0  # seconds that the process waits for the thread when it ends


class Responder:
    """A daemon thread that calls a function every quarter of a second, until the process ends."""

    def __init__(self, answer: Callable[[], None], at_end: Callable[[], None]) -> None:
        """Call `answer` in the thread, and `at_end` once when the process ends."""
        self.answer, self.at_end = answer, at_end
        self.ended = Event()
        self.thread: Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs already. A forked child starts its own, because threads are not copied."""
        if self.thread is None or not self.thread.is_alive():
            show_fatal_signals()
            self.ended = Event()
            self.thread = Thread(target=self._run, name="thunder collectives", daemon=True)
            self.thread.start()
            Finalize(None, self.stop, exitpriority=0)

    def stop(self) -> None:
        """End the thread before the interpreter ends."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join(PATIENCE)
        self.at_end()

    def _run(self) -> None:
        while not self.ended.wait(PAUSE):
            # A group or its store has gone, or a group was created in the meantime.
            with suppress(RuntimeError, LookupError):
                self.answer()


def show_fatal_signals() -> None:
    """Let this process print its stack if a fatal signal ends the process.

    Gloo ends a process by such a signal if it receives more bytes than expected.
    """
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        with suppress(OSError, ValueError):  # a stream without a file descriptor
            faulthandler.enable(sys.__stderr__)
