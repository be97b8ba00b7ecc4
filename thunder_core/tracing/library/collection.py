"""Pause Python's garbage collection, which would cost time or free objects too early."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused: list[bool] = []  # for each active pause, outermost first: whether collection was on before the pause


def is_collection_enabled() -> bool:
    """Whether the user's garbage collection is on, regardless of Thunder's pauses."""
    return _paused[0] if _paused else gc.isenabled()


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause garbage collection during the block.

    Most objects that tracing allocates stay alive, and scanning them costs a fifth of the tracing time. A reference
    cycle with a CUDA graph must not be freed while another graph is captured.
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
