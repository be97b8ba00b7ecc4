"""Examinations: calls of compiled lines on copies of their inputs, which must leave no trace in what the lines keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_examined = ContextVar("_examined", default=False)


def is_examined() -> bool:
    """Whether lines run to be compared, on copies: whoever keeps something of a call by addresses keeps nothing."""
    return _examined.get()


@contextmanager
def examining() -> Iterator[None]:
    """While this lasts, calls in this context are examinations."""
    token = _examined.set(True)
    try:
        yield
    finally:
        _examined.reset(token)
