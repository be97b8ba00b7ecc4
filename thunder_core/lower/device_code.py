"""Kernels as machine code of a GPU, which need not be here: compiled by an executor, kept, and given back to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceCode:
    """One kernel: the executor that launches it, its machine code, and as plain data what a launch must know of it."""

    executor: str
    image: bytes
    facts: Mapping[str, Any]
