"""Garbage collection, paused where it would cost time or free what must not be freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """While this lasts, no garbage is collected.

    What a trace allocates stays, and looking through it costs a fifth of tracing. A cycle that holds a CUDA graph must
    not be freed while another graph is captured.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
