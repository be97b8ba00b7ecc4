"""The model or function whose compilation builds the entries of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MODEL: ContextVar[str] = ContextVar("thunder_model_of_cache_entries", default="")


@contextmanager
def record_model(model: str) -> Iterator[None]:
    """Record this model's name in the entries that are built within the block.

    Nested blocks keep the outermost name.
    """
    token = _MODEL.set(_MODEL.get() or model)
    try:
        yield
    finally:
        _MODEL.reset(token)


def model_of_new_entries() -> str:
    """Return the name of the model that entries are currently built for; empty if nothing is compiled."""
    return _MODEL.get()
