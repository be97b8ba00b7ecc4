"""Marks for the calls of checks: examinations must not store any state, and validations must replay graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_examined = ContextVar("_examined", default=False)


def is_examined() -> bool:
    """Whether this call is an examination, so that no state may be stored by the addresses of its tensors."""
    return _examined.get()


@contextmanager
def examining() -> Iterator[None]:
    """Mark calls in this context as examinations during the block."""
    token = _examined.set(True)
    try:
        yield
    finally:
        _examined.reset(token)


class _Replays:
    """The number of running validations of this process, also for the threads in which autograd calls a backward."""

    running = 0


def is_validated() -> bool:
    """Whether this process validates a program, so that even the first call must replay what later calls replay."""
    return _Replays.running > 0


@contextmanager
def validating() -> Iterator[None]:
    """Mark calls during the block as validated."""
    _Replays.running += 1
    try:
        yield
    finally:
        _Replays.running -= 1
