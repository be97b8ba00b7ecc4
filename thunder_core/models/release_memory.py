"""Giving memory that nobody uses any more back to the system."""

from __future__ import annotations

import ctypes
import gc

# Of glibc, which keeps freed blocks of up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), as weights and their copies are.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


def release_memory() -> None:
    """Collect garbage, and give what is free back."""
    gc.collect()
    trim_memory()


def trim_memory() -> None:
    """Have the allocator of the C library give the pages that are free back, which takes milliseconds at the most."""
    _trim(0)
