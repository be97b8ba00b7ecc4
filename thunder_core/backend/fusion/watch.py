"""Progress of compilations: whoever waits for one is told how many of its steps are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[int, int], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """While the block runs, `watcher(done, total)` is told of each step."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def advance(done: int, total: int) -> None:
    """Record that so many steps of a compilation are done."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)
