"""Weights that are packed once, when they are first multiplied, and again after a write to them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

PANEL = 32  # columns that are packed together at most: the memory is a multiple of them


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight, and the version and the address of the weight that was packed."""

    memory: torch.Tensor
    version: int
    address: int


@dataclass(eq=False)
class PackedWeights:
    """The packed weights of one kernel, by weight, for all programs of the process.

    A packed weight is freed with its weight. It is packed again if the version counter of the weight or its address has
    changed. Writes that count no version (`weight.data[0] = 1`, or by NumPy) are not noticed. A weight that was made in
    inference mode has no version counter, and is packed at each call.
    """

    pack: Callable[..., Any]
    kept: MutableMapping[torch.Tensor, PackedWeight] = field(default_factory=WeakIdKeyDictionary)
    lock: RLock = field(default_factory=RLock)

    @classmethod
    def of(cls, pack: Callable[..., Any]) -> PackedWeights:
        """Return the weights that a function packs; each function has one object in a process."""
        return _PACKED.setdefault(pack, cls(pack))

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a float32 weight [out, in] as panels of columns, which the kernel reads."""
        if weight.is_inference():
            return self._packed(weight)
        found = self.kept.get(weight)
        if found is None or found.version != weight._version or found.address != weight.data_ptr():
            with self.lock:
                version = weight._version  # before the weight is read: a later write is noticed at the next call
                found = PackedWeight(self._packed(weight), version, weight.data_ptr())
                self.kept[weight] = found
        return found.memory

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        columns, depth = weight.shape
        memory = torch.empty(-(-columns // PANEL) * PANEL * depth, dtype=torch.float32, device="cpu")
        self.pack(weight, memory, depth, columns, weight.stride(0))
        return memory


_PACKED: dict[Callable[..., Any], PackedWeights] = {}
