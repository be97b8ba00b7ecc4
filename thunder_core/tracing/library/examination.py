"""Examinations: calls of compiled lines on copies of their inputs, in which the lines must not store any state."""

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
