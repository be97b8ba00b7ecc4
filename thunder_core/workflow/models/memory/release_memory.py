"""Giving memory that nobody uses any more back to the system."""

from __future__ import annotations

import ctypes
import gc

from thunder_core.workflow.models.memory.memory_limits import private_memory

# Of glibc, which keeps freed blocks of up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), as weights and their copies are.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


MUCH = 192 << 20  # bytes; to look for garbage takes a fifth of a second, which small models are spared


def release_memory(before: int | None) -> None:
    """Give what is free back to the system, and collect garbage where private memory is much more than `before`.

    `before` is the private memory of this process in bytes at an earlier time; None where that is not known.
    """
    trim_memory()
    now = private_memory()
    if before is None or now is None or now - before > MUCH:
        gc.collect()
        trim_memory()


def trim_memory() -> None:
    """Have the allocator of the C library give the pages that are free back, which takes milliseconds at the most."""
    _trim(0)
