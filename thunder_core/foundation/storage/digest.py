"""BLAKE3 digests of bytes and files. Large data is hashed by several threads, also after a fork of the process."""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

BLOCK = 16 << 20  # bytes to read at a time: enough for blake3 to use several threads
MIN_THREADED_SIZE = 4 << 20  # bytes; for less data, starting threads costs more than it saves


def digest_for(size: int) -> blake3:
    """Return an empty digest for about `size` bytes of data; it has its own threads if the data is large.

    The thread pool that all digests of a process can share (`blake3.AUTO`) does not survive a fork. After a fork, a
    digest in the child would wait forever for the threads of the parent.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return blake3(max_threads=threads if size >= MIN_THREADED_SIZE else 1)


def digest_of(content: bytes) -> str:
    """Return the BLAKE3 digest of some bytes, in hexadecimal."""
    return blake3(content).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the BLAKE3 digest of a file. `mmap` is not used, because a mapped file that shrinks kills the process."""
    size = path.stat().st_size
    digest = digest_for(size)
    block = bytearray(min(BLOCK, max(1, size)))
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(block):
            digest.update(memoryview(block)[:read])
    return digest.hexdigest()
