"""BLAKE3 digests of bytes and files, of much data by threads that survive a fork."""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

BLOCK = 16 << 20  # bytes that are read at a time: enough for blake3 to use several threads
MIN_THREADED_SIZE = 4 << 20  # bytes; below, starting threads costs more than they save


def digest_for(size: int) -> blake3:
    """A digest that about so many bytes will be given to: for many of them, one with threads of its own.

    The pool that all digests of a process can share (`blake3.AUTO`) does not survive a fork: in the child of a process
    that had used it, a digest would wait for its threads for ever.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return blake3(max_threads=threads if size >= MIN_THREADED_SIZE else 1)


def digest_of(content: bytes) -> str:
    """The BLAKE3 digest of some bytes, in hexadecimal."""
    return blake3(content).hexdigest()


def digest_of_file(path: Path) -> str:
    """The BLAKE3 digest of a file, which may grow or shrink meanwhile: a map of one that shrinks kills the process."""
    size = path.stat().st_size
    digest = digest_for(size)
    block = bytearray(min(BLOCK, max(1, size)))
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(block):
            digest.update(memoryview(block)[:read])
    return digest.hexdigest()
