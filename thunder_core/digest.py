"""BLAKE3 digests of much data, by threads that survive a fork."""

from __future__ import annotations

import os

from blake3 import blake3

MUCH = 4 << 20  # bytes, below which starting threads costs more than they save


def digest_for(size: int) -> blake3:
    """A digest that about so many bytes will be given to: for many of them, one with threads of its own.

    The pool that all digests of a process can share (`blake3.AUTO`) does not survive a fork: in the child of a process
    that had used it, a digest would wait for its threads for ever.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return blake3(max_threads=threads if size >= MUCH else 1)
