"""Examinations: calls of compiled lines on copies of their inputs, which must not change state that the lines keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_examined = ContextVar("_examined", default=False)


def is_examined() -> bool:
    """Whether a call only compares lines on copies, so that no state may be kept by the addresses of its tensors."""
    return _examined.get()


@contextmanager
def examining() -> Iterator[None]:
    """Mark calls in this context as examinations during the block."""
    token = _examined.set(True)
    try:
        yield
    finally:
        _examined.reset(token)
