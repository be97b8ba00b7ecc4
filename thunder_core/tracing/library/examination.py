"""Mark calls that check a program: examinations must not store any state, and validations must replay graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_examined = ContextVar("_examined", default=False)


def is_examined() -> bool:
    """Whether this call is an examination, so that nothing may be cached by the addresses of its tensors."""
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
    """The number of running validations of this process; autograd's threads, which call a backward, also read it."""

    running = 0


def is_validated() -> bool:
    """Whether this process validates a program. Then the first call, too, must replay CUDA graphs."""
    return _Replays.running > 0


@contextmanager
def validating() -> Iterator[None]:
    """Mark calls during the block as validated."""
    _Replays.running += 1
    try:
        yield
    finally:
        _Replays.running -= 1
