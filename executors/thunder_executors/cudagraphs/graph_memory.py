"""Limit the memory of CUDA graphs: the graphs that were used least recently are dropped beyond the limit.

The memory of a graph consists of the buffers of its inputs, and of its results, which each replay overwrites. The graph
of a prompt, for example, has a whole KV cache. Temporaries do not count, because the graphs of a stream share a memory
pool for them. A graph that lends results to a backward has a pool of its own, which counts as a whole. A graph that
alone exceeds the limit is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Protocol
from weakref import WeakSet

SHARE = 16  # the graphs of a device may use at most one sixteenth of its memory
USES = count()  # numbers the uses of graphs


class KeptGraph(Protocol):
    """A graph, with the size of its memory and the number of its last use."""

    @property
    def nbytes(self) -> int:
        """The size of the graph's memory in bytes."""

    @property
    def last_use(self) -> int:
        """The number of the last use."""


class GraphOwner(Protocol):
    """A function with its graphs. The first part of a graph's key is its device."""

    recordings: Any

    def drop(self, key: Any) -> None:
        """Drop a graph."""


class GraphMemory:
    """The graphs of all functions of this process. The caller of `drop_until_fitting` holds the lock of graphs."""

    def __init__(self) -> None:
        self._owners: WeakSet[Any] = WeakSet()

    def add(self, owner: GraphOwner) -> None:
        """Add a function, whose graphs count as long as it lives."""
        self._owners.add(owner)

    def require_fits(self, graph: KeptGraph, memory: int) -> None:
        """Raise `RuntimeError` for a graph that alone exceeds the limit of a device with `memory` bytes."""
        if graph.nbytes > memory // SHARE:
            raise RuntimeError(f"it needs {graph.nbytes:,} bytes of its own, more than 1/{SHARE} of the GPU's memory")

    def drop_until_fitting(self, device: int, newest: KeptGraph, memory: int) -> None:
        """Drop graphs of a device with `memory` bytes until the others fit into the limit; keep the newest graph."""
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
