"""Storages: which tensors of a computation share memory, and how many bytes are held by those that are alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from thunder_core.tracing.analysis.aliasing import shares_storage
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.extent import extent

BLOCKS = {"cuda": 512}  # bytes to whose multiples an allocator rounds (c10/cuda/CUDACachingAllocator.h: kMinBlockSize)


@dataclass
class Storages:
    """The storages that are held, each by the names that share it; one that is pinned stays whoever goes."""

    held: int = 0
    _owners: dict[str, int] = field(default_factory=dict)
    _names: dict[int, set[str]] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _pinned: set[int] = field(default_factory=set)
    _count: int = 0

    def make(self, name: str, size: int) -> None:
        """A storage of its own for a name."""
        self.drop(name)
        self._count += 1
        self._owners[name] = self._count
        self._names[self._count] = {name}
        self._bytes[self._count] = size
        self.held += size

    def share(self, name: str, base: str) -> None:
        """Let a name share the storage of another; that of a name which is not known is nobody's."""
        if name == base or base not in self._owners:
            return
        owner = self._owners[base]
        self.drop(name)
        self._owners[name] = owner
        self._names[owner].add(name)

    def pin(self, name: str) -> None:
        """Hold the storage of a name as long as this lasts."""
        if name in self._owners:
            self._pinned.add(self._owners[name])

    def drop(self, name: str) -> None:
        """A name goes, and with the last one the storage, unless it is pinned."""
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        self._names[owner].discard(name)
        if not self._names[owner] and owner not in self._pinned:
            self.held -= self._bytes.pop(owner)

    def knows(self, name: str) -> bool:
        """Whether a name is alive."""
        return name in self._owners

    def size(self, names: Iterable[str]) -> int:
        """The bytes of the storages of these names that are not pinned."""
        owners = {self._owners[name] for name in names if name in self._owners}
        return sum(self._bytes[owner] for owner in owners - self._pinned)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are alive."""
        return tuple(self._owners)

    def enter(self, bsym: BoundSymbol) -> None:
        """Record what a call makes; its aten operations say which of it are views, and of what."""
        for proxy, base in births(bsym):
            if base is not None:
                self.share(proxy.name, base)
            else:
                self.make(proxy.name, size_of(proxy))


def size_of(proxy: TensorProxy) -> int:
    """The bytes of a storage that is as large as a tensor of this metadata needs; of symbols, for their hints."""
    shape, stride = map(hint_of, proxy.shape), map(hint_of, proxy.stride)
    return rounded(length_of(shape, stride) * proxy.dtype.itemsize, proxy.device)


def length_of(shape: Iterable[int], stride: Iterable[int]) -> int:
    """The number of elements that a storage needs for a tensor; one that is not strided counts as if it were dense."""
    sizes, steps = tuple(shape), tuple(stride)
    return extent(sizes, steps) if len(steps) == len(sizes) else torch.Size(sizes).numel()


def rounded(size: int, device: torch.device) -> int:
    """The bytes that the allocator of a device takes for so many."""
    block = BLOCKS.get(device.type, 1)
    return -(-size // block) * block


def births(bsym: BoundSymbol) -> Iterator[tuple[TensorProxy, str | None]]:
    """Each tensor that a call makes, with an earlier name whose storage it shares; operations are looked through."""
    bases: dict[str, str] = {}
    for step in bsym.at_level("aten"):
        read = next((proxy.name for proxy in step.inputs if isinstance(proxy, TensorProxy)), None)
        if read is not None and shares_storage(step):
            bases |= {proxy.name: bases.get(read, read) for proxy in step.tensors}
    first = {proxy.name: proxy.name for proxy in bsym.inputs}  # of each storage the name by which it is known
    for proxy in bsym.tensors:
        owner = first.setdefault(bases.get(proxy.name, proxy.name), proxy.name)
        yield proxy, owner if owner != proxy.name else None
