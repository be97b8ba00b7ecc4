"""Errors of the user's signal handlers during tracing: they end the tracing and reach the user.

A handler may run between any two instructions of Python. An example is a handler for `signal.alarm` that raises
`TimeoutError`. If Thunder took this error for an error of the traced program, it would run the program in eager
PyTorch.
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
    """Raised in place of the error of a user's handler. Code that does not catch Ctrl-C does not catch this, either."""


class WrappedHandlers:
    """The user's handlers, wrapped: the error of a handler is stored as `error`, and `HandlerRaised` is raised instead.

    While handlers are installed and restored, `is_raising` is False: then an error is stored and nothing is raised.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.originals: dict[int, Handler] = {}
        self.is_raising = False
        self.are_restored = False

    def install(self) -> None:
        """Wrap all handlers that are functions of the user."""
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                self.originals[number] = handler
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Call the user's handler.

        Code of the user may still call this function after the handlers are restored. Then the error is raised
        unchanged.
        """
        if self.are_restored:
            self.originals[number](number, frame)
            return
        try:
            self.originals[number](number, frame)
        except BaseException as error:
            if self.error is None:
                self.error = error
            if self.is_raising:
                raise HandlerRaised(str(error)) from error

    def restore(self) -> None:
        """Restore the user's handlers, except where other handlers have been installed in the meantime."""
        for number, handler in self.originals.items():
            if signal.getsignal(number) == self.handle:
                signal.signal(number, handler)
        self.are_restored = True


_installed: list[WrappedHandlers] = []  # the innermost last


@contextmanager
def ended_by_handlers() -> Iterator[None]:
    """Raise the first error of the user's signal handlers at the end of the block, even if code in the block caught it.

    An error that no code catches ends the block at once. Python calls handlers only in the main thread, so other
    threads are not affected.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = WrappedHandlers()
    try:
        handlers.install()
        _installed.append(handlers)
        handlers.is_raising = True
        yield
    except BaseException:
        if handlers.error is None:
            raise
    finally:
        handlers.is_raising = False
        if handlers in _installed:
            _installed.remove(handlers)
        handlers.restore()
    if handlers.error is not None:
        raise handlers.error from handlers.error.__cause__


def restore_handlers() -> None:
    """Restore the user's handlers for the rest of all blocks, because the program is about to read or set a handler."""
    for handlers in reversed(_installed):
        handlers.restore()
