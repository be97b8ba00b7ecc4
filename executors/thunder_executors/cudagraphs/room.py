"""The bound on the memory that graphs hold: beyond it, the graphs that were used least recently are dropped.

A graph holds the buffers of its inputs and the memory of its results, which each replay overwrites. The graph of a
prompt, for example, holds a whole KV cache. Temporaries do not count: they lie in blocks of the memory pool that all
graphs of a stream share. A graph that alone exceeds the bound is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Protocol
from weakref import WeakSet

SHARE = 16  # the graphs of a device hold at most one sixteenth of its memory
USES = count()  # numbers the uses of graphs


class KeptGraph(Protocol):
    """A graph, with the bytes that it holds and the number of its last use."""

    @property
    def nbytes(self) -> int:
        """The bytes that the graph holds."""

    @property
    def last_use(self) -> int:
        """The number of the last use."""


class GraphOwner(Protocol):
    """A function with its graphs. The first part of a graph's key is its device."""

    recordings: Any

    def drop(self, key: Any) -> None:
        """Drop a graph."""


class Room:
    """The graphs of all functions of this process. The caller of `make` holds the lock of graphs."""

    def __init__(self) -> None:
        self._owners: WeakSet[Any] = WeakSet()

    def add(self, owner: GraphOwner) -> None:
        """Add a function, whose graphs count as long as it lives."""
        self._owners.add(owner)

    def require(self, graph: KeptGraph, memory: int) -> None:
        """Raise `RuntimeError` for a graph that alone holds too much for a device with `memory` bytes."""
        if graph.nbytes > memory // SHARE:
            raise RuntimeError(
                f"it would hold {graph.nbytes:,} bytes of inputs and results, more than 1/{SHARE} of the GPU's memory"
            )

    def make(self, device: int, newest: KeptGraph, memory: int) -> None:
        """Drop graphs of a device with `memory` bytes until all fit; the newest graph is kept."""
        kept = sorted(self._graphs_on(device), key=lambda entry: entry[0].last_use)
        held = sum(graph.nbytes for graph, _, _ in kept)
        for graph, owner, key in kept:
            if held <= memory // SHARE:
                return
            if graph is not newest:
                owner.drop(key)
                held -= graph.nbytes

    def _graphs_on(self, device: int) -> Iterator[tuple[KeptGraph, GraphOwner, Any]]:
        for owner in self._owners:
            for key, graph in owner.recordings.items():
                if key[0] == device:
                    yield graph, owner, key
