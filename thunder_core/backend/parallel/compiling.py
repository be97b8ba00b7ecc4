"""Whether this process compiles a program now. Other ranks wait for a rank that compiles, instead of reporting it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class _Compilations:
    """The number of running compilations of all threads: autograd compiles backwards in threads of its own."""

    running = 0
    lock = Lock()


def is_compiling() -> bool:
    """Whether a thread of this process compiles a program."""
    return _Compilations.running > 0


@contextmanager
def compiling() -> Iterator[None]:
    """Count the block as the compilation of a program, so that `is_compiling` returns True within the block."""
    _add(1)
    try:
        yield
    finally:
        _add(-1)


def _add(number: int) -> None:
    with _Compilations.lock:
        _Compilations.running += number
