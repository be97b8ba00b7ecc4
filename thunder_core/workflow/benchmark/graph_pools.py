"""The memory of CUDA graphs, which is in pools of their own.

A graph's temporaries are in blocks that the allocator counts as free. Its results, and what a forward saves for its
backward, are in blocks that are allocated before the call that replays the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from thunder_core.tracing.extension.memory_pools import Pool


@contextmanager
def replayed_pools() -> Iterator[set[Pool]]:
    """Yield the memory pools of the graphs that are replayed within the context."""
    pools: set[Pool] = set()
    graph_class: Any = torch.cuda.CUDAGraph
    replay = graph_class.replay

    @wraps(replay)
    def record_and_replay(graph: Any) -> None:
        pools.add(tuple(graph.pool()))
        replay(graph)

    graph_class.replay = record_and_replay
    try:
        yield pools
    finally:
        graph_class.replay = replay
