"""Return unused memory of this process to the operating system."""

from __future__ import annotations

import ctypes
import gc

from thunder_core.foundation.memory_limits import private_memory

# glibc keeps freed blocks of up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), such as weights and their copies.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


# If the private memory has grown by fewer bytes, garbage is not collected, because a collection takes 0.2 seconds.
GARBAGE_THRESHOLD = 192 << 20


def release_memory(before: int | None) -> None:
    """Return free memory to the system, and collect garbage if private memory is much larger than `before`.

    `before` is the private memory of this process in bytes at an earlier time. Garbage is also collected if `before` is
    None, or if the system does not report the private memory.
    """
    trim_memory()
    now = private_memory()
    if before is None or now is None or now - before > GARBAGE_THRESHOLD:
        gc.collect()
        trim_memory()


def trim_memory() -> None:
    """Return the free pages of the C allocator to the system, which takes at most milliseconds."""
    _trim(0)
