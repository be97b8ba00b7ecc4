"""Counters of the thread blocks of a launch that have finished, which the last thread block sets to zero again.

A counter must not be shared by launches that may run at the same time. Each CUDA graph therefore has counters of its
own, which are set to zero once, before the graph is captured: the launches of a graph run one after the other, and a
graph never runs at the same time as itself. So graphs on several streams, or of several threads, do not disturb each
other. A launch outside of a graph of Thunder gets new counters, which are set to zero on the stream of the launch. If
another library captures the launch, its graph sets them to zero at each replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

COUNTERS = 512  # of a graph; if a launch needs more, the graph sets new counters to zero at each replay


@dataclass(frozen=True)
class GraphCounters:
    """The counters of a graph, and the stream that it is captured on."""

    counters: torch.Tensor
    stream: object


_captured: ContextVar[GraphCounters | None] = ContextVar("_captured", default=None)


@contextmanager
def counters_of_graph(counters: torch.Tensor, stream: object) -> Iterator[None]:
    """Within the context, launches on this stream, which are captured, use these counters, which are zero."""
    token = _captured.set(GraphCounters(counters, stream))
    try:
        yield
    finally:
        _captured.reset(token)


def arrival_counters(count: int, device: torch.device) -> torch.Tensor:
    """Return at least `count` counters on a device, which are zero when the next launch on the current stream runs.

    The launch must set them to zero again.
    """
    graph = _captured.get()
    if (
        graph is not None
        and count <= len(graph.counters)
        and graph.counters.device == device
        and graph.stream == torch.cuda.current_stream(device)
    ):
        return graph.counters
    return torch.zeros(count, dtype=torch.int32, device=device)
