"""Garbage collection, paused where it would cost time or free what must not be freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused: list[bool] = []  # whether garbage was collected before each pause that lasts, the first pause first


def is_collection_enabled() -> bool:
    """Whether garbage is collected, but for pauses of ours."""
    return _paused[0] if _paused else gc.isenabled()


@contextmanager
def collection_paused() -> Iterator[None]:
    """While this lasts, no garbage is collected.

    What a trace allocates stays, and looking through it costs a fifth of tracing. A cycle that holds a CUDA graph must
    not be freed while another graph is captured.
    """
    was_on = gc.isenabled()
    _paused.append(was_on)
    gc.disable()
    try:
        yield
    finally:
        _paused.pop()
        if was_on:
            gc.enable()
