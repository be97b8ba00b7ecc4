"""Memory in huge pages (2 MiB) for packed weights, which a core reads with a higher bandwidth than pages of 4 KiB."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

import torch

PAGE = 2 << 20
BLOCK = 16 * PAGE  # bytes that are requested from the system at a time
SMALL = 1 << 18  # bytes: smaller tensors stay in a core's cache, and gain nothing
ALIGNMENT = 64  # bytes of a cache line


@dataclass(eq=False)
class HugePages:
    """Divides blocks of huge pages among tensors. A block is freed when all its tensors are freed."""

    block: weakref.ref[mmap.mmap] | None = None  # the newest block
    used: int = 0  # bytes of the newest block
    lock: Lock = field(default_factory=Lock)

    def empty(self, count: int) -> torch.Tensor:
        """Return `count` float32 numbers with any values, in huge pages if the system has them."""
        size = 4 * count
        if size < SMALL or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(count, dtype=torch.float32, device="cpu")
        with self.lock:
            block = None if self.block is None else self.block()
            if block is None or self.used + size > len(block):
                block, self.used = _new_block(size), 0
                self.block = weakref.ref(block)
            offset = self.used
            self.used += -(-size // ALIGNMENT) * ALIGNMENT
        return torch.frombuffer(block, dtype=torch.float32, count=count, offset=offset)


def _new_block(size: int) -> mmap.mmap:
    """Return memory for at least `size` bytes, whose pages the system may replace by huge pages."""
    block = mmap.mmap(-1, max(BLOCK, -(-size // PAGE) * PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


HUGE_PAGES = HugePages()
"""The memory of all packed weights of the process."""
