"""Errors of the user's signal handlers, which end the tracing of a program.

A handler, such as a handler for `signal.alarm` that raises `TimeoutError`, runs between any two instructions of Python.
During tracing, its error must not count as an error of the program: the program would then run in eager PyTorch.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class HandlerRaised(KeyboardInterrupt):
    """An error of a signal handler. All code that lets Ctrl-C pass also lets this exception pass."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class WrappedHandlers:
    """Handlers that keep the first error of the user's handlers (`error`), and raise `HandlerRaised` in its place."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.originals: dict[int, Handler] = {}
        self.is_active = False

    def install(self) -> None:
        """Replace all handlers that are functions of the user."""
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                self.originals[number] = handler
                signal.signal(number, self.handle)
        self.is_active = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Call the user's handler. Outside of the block, which the user's code may extend, raise its error itself."""
        try:
            self.originals[number](number, frame)
        except BaseException as error:
            if not self.is_active:
                raise
            self.error = self.error or error
            raise HandlerRaised(error) from error

    def restore(self) -> None:
        """Restore the user's handlers, except where the block has installed another one."""
        self.is_active = False
        for number, handler in self.originals.items():
            if signal.getsignal(number) == self.handle:
                signal.signal(number, handler)


@contextmanager
def ended_by_handlers() -> Iterator[None]:
    """Let errors of the user's signal handlers end the block, also if code in the block catches all exceptions.

    Python calls handlers in the main thread only, so other threads are not affected.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = WrappedHandlers()
    handlers.install()
    try:
        yield
    except BaseException:
        handlers.restore()
        if handlers.error is not None:
            raise handlers.error from None
        raise
    handlers.restore()
    if handlers.error is not None:
        raise handlers.error
