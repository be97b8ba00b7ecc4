"""Progress of compilations: a watcher is called with the number of finished steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[int, int], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call `watcher(done, total)` after each step within the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def advance(done: int, total: int) -> None:
    """Report the number of finished steps to the watcher, if there is one."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)
