"""Kernels as machine code for a GPU that this machine may lack: compiled, stored and launched by an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceCode:
    """A kernel: the executor that launches it, its machine code, and the facts that a launch needs, as plain data."""

    executor: str
    image: bytes
    facts: Mapping[str, Any]


_target: ContextVar[str] = ContextVar("target", default="")


@contextmanager
def targeting(target: str) -> Iterator[None]:
    """Compile programs for a GPU architecture (`sm_90`), which this machine may lack, within the block."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def target_of_programs() -> str:
    """Return the requested architecture; empty for this machine's own GPU."""
    return _target.get()
