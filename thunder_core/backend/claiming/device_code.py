"""Kernels as machine code of a GPU, which need not be here: compiled by an executor, kept, and given back to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceCode:
    """One kernel: the executor that launches it, its machine code, and as plain data what a launch must know of it."""

    executor: str
    image: bytes
    facts: Mapping[str, Any]


_target: ContextVar[str] = ContextVar("target", default="")


@contextmanager
def targeting(target: str) -> Iterator[None]:
    """While the block runs, programs are compiled for a GPU of that architecture (`sm_90`), which need not be here."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def target_of_programs() -> str:
    """The architecture that was asked for; empty for this machine's own GPU."""
    return _target.get()
