"""Simulate the storages of a computation: which names share memory, and how many bytes are live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from thunder_core.tracing.analysis.aliasing import shares_storage
from thunder_core.tracing.analysis.collectives import is_wait
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.extent import extent

BLOCKS = {"cuda": 512}  # allocation granularity in bytes (c10/cuda/CUDACachingAllocator.h: kMinBlockSize)


@dataclass
class Storages:
    """The live storages, each with the names that share it. A pinned storage stays live without names."""

    live_bytes: int = 0
    _owners: dict[str, int] = field(default_factory=dict)
    _names: dict[int, set[str]] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _pinned: set[int] = field(default_factory=set)
    _count: int = 0

    def make(self, name: str, size: int) -> None:
        """Allocate a new storage for a name."""
        self.drop(name)
        self._count += 1
        self._owners[name] = self._count
        self._names[self._count] = {name}
        self._bytes[self._count] = size
        self.live_bytes += size

    def share(self, name: str, base: str) -> None:
        """Let a name share the storage of another name; ignore an unknown base."""
        if name == base or base not in self._owners:
            return
        owner = self._owners[base]
        self.drop(name)
        self._owners[name] = owner
        self._names[owner].add(name)

    def pin(self, name: str) -> None:
        """Keep the storage of a name for the lifetime of this object."""
        if name in self._owners:
            self._pinned.add(self._owners[name])

    def drop(self, name: str) -> None:
        """Drop a name, and free its storage if that was the last name and the storage is not pinned."""
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        self._names[owner].discard(name)
        if not self._names[owner] and owner not in self._pinned:
            self.live_bytes -= self._bytes.pop(owner)

    def is_live(self, name: str) -> bool:
        """Whether a name is live."""
        return name in self._owners

    def size(self, names: Iterable[str]) -> int:
        """Return the bytes of the storages of these names, without pinned storages."""
        owners = {self._owners[name] for name in names if name in self._owners}
        return sum(self._bytes[owner] for owner in owners - self._pinned)

    @property
    def names(self) -> tuple[str, ...]:
        """The live names."""
        return tuple(self._owners)

    def enter(self, bsym: BoundSymbol) -> None:
        """Record the tensors that a call creates; its aten operations show which of the tensors are views."""
        for proxy, base in new_tensors(bsym):
            if base is not None:
                self.share(proxy.name, base)
            else:
                self.make(proxy.name, size_of(proxy))


def size_of(proxy: TensorProxy) -> int:
    """Return the bytes of a storage for a tensor with this metadata; a symbolic size counts as its traced value."""
    shape, stride = map(hint_of, proxy.shape), map(hint_of, proxy.stride)
    return round_to_block(length_of(shape, stride) * proxy.dtype.itemsize, proxy.device)


def length_of(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Return the number of elements that the storage of a tensor needs; a tensor without strides counts as dense."""
    sizes, steps = tuple(shape), tuple(stride)
    return extent(sizes, steps) if len(steps) == len(sizes) else torch.Size(sizes).numel()


def round_to_block(size: int, device: torch.device) -> int:
    """Return the bytes that a device's allocator reserves for a size."""
    block = BLOCKS.get(device.type, 1)
    return -(-size // block) * block


def new_tensors(bsym: BoundSymbol) -> Iterator[tuple[TensorProxy, str | None]]:
    """Yield each tensor that a call creates, with the name whose storage it shares, or None for a new storage."""
    bases: dict[str, str] = {}
    for step in bsym.at_level("aten"):
        read = next((proxy.name for proxy in step.inputs if isinstance(proxy, TensorProxy)), None)
        if read is not None and (shares_storage(step) or is_wait(step)):
            bases |= {proxy.name: bases.get(read, read) for proxy in step.tensors}
    first = {proxy.name: proxy.name for proxy in bsym.inputs}  # the first name of each storage
    for proxy in bsym.tensors:
        owner = first.setdefault(bases.get(proxy.name, proxy.name), proxy.name)
        yield proxy, owner if owner != proxy.name else None
