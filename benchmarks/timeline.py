"""Simulate a training step on many ranks from the traces of one process, measured line by line.

Assumptions: all ranks compute each line in the same time. A group runs one collective at a time, in order, concurrently
with the computation, which it does not slow down. Collectives use rings with one bandwidth and one latency between
neighbours (`Network.seconds`). Lines that work on shards take as long as on full tensors.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import thunder_core
from thunder_core.tracing.analysis.collectives import Waits, collective_of, is_wait, operators
from thunder_core.tracing.ir.evaluate import bindings, evaluate_bound_symbol
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

Transfers = Callable[[int], float]
# How often the tensor of a collective passes over the slowest link of a ring of ranks.
TRANSFERS: Mapping[str, Transfers] = {
    "all_gather_into_tensor": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter_tensor": lambda ranks: (ranks - 1) / ranks,
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0 if ranks > 1 else 0.0,
}
STEPS: Mapping[str, Transfers] = {
    "all_gather_into_tensor": lambda ranks: ranks - 1,
    "reduce_scatter_tensor": lambda ranks: ranks - 1,
    "all_reduce": lambda ranks: 2 * (ranks - 1),
    "broadcast": lambda ranks: math.ceil(math.log2(ranks)),
}


@dataclass(frozen=True)
class Network:
    """A network of ranks: bytes per second between two neighbours of a ring, and seconds of latency of a message.

    With `one_at_a_time`, a group begins a collective when its previous collective has ended.
    """

    ranks: int
    bandwidth: float
    latency: float
    one_at_a_time: bool = True

    def seconds(self, kind: str, size: int) -> float:
        """Return the seconds of a collective of full tensors with `size` bytes.

        The formulas are those of ring algorithms: `(n - 1) * (latency + bytes / n / bandwidth)` for an all-gather and a
        reduce-scatter, and twice as much for an all-reduce.
        """
        name = kind.removesuffix("_coalesced")
        return STEPS[name](self.ranks) * self.latency + TRANSFERS[name](self.ranks) * size / self.bandwidth


@dataclass(frozen=True)
class Event:
    """One line of a step: its seconds of computation, or the number of a collective that it starts or waits for.

    `kind` and `bytes` describe the collective that a start begins.
    """

    seconds: float = 0.0
    start: int | None = None
    wait: int | None = None
    kind: str = ""
    bytes: int = 0
    group: str = ""


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a step: in total, of its computation, and of its collectives one after the other."""

    step: float
    computation: float
    communication: float

    @property
    def exposed(self) -> float:
        """The seconds in which the step only waits."""
        return self.step - self.computation

    @property
    def hidden(self) -> float:
        """The share of the communication that overlaps computation."""
        return 1 - self.exposed / self.communication if self.communication else 1.0


def predict(events: Iterable[Event], network: Network, speedup: float = 1.0) -> Prediction:
    """Predict a step on a network; `speedup` divides the measured seconds of computation."""
    now = computation = communication = 0.0
    free: dict[str, float] = {}  # when each group has finished its collectives
    ends: dict[int, float] = {}
    for event in events:
        now += event.seconds / speedup
        computation += event.seconds / speedup
        if event.start is not None:
            seconds = network.seconds(event.kind, event.bytes)
            communication += seconds
            begin = max(now, free.get(event.group, 0.0)) if network.one_at_a_time else now
            ends[event.start] = free[event.group] = begin + seconds
        if event.wait is not None:
            now = max(now, ends[event.wait])
    return Prediction(max(now, *free.values(), 0.0), computation, communication)


def claimed_traces(model: Any) -> tuple[Trace, Trace]:
    """Return the latest forward and backward of a compiled model after claiming; later stages only free memory."""
    forward, backward = (
        next(trace for trace in reversed(traces) if trace.made_by.startswith("claim"))
        for traces in (thunder_core.last_traces(model), thunder_core.last_backward_traces(model))
    )
    return forward, backward


def events_of(traces: Sequence[Trace], rounds: int = 5) -> list[Event]:
    """Return the lines of a step in order, each measured as the median of rounds on random inputs.

    The traces are the forward and backward of a compiled model, whose process group has this process only.
    """
    seconds = median_seconds(traces, rounds)
    events: list[Event] = []
    for number, trace in enumerate(traces):
        starts = Waits(trace.bound_symbols).starts
        for index, bsym in enumerate(trace.bound_symbols):
            events.append(event_of(bsym, number, index, starts, seconds[number][index]))
    return events


def event_of(bsym: BoundSymbol, trace: int, index: int, starts: Mapping[int, int], seconds: float) -> Event:
    """Return a line as an event; collectives are numbered by trace and index."""
    if not bsym.communicates:
        return Event(seconds)
    if index in starts:
        return Event(wait=(trace << 32) + starts[index])
    operator = next(operator for operator in operators(bsym) if not is_wait(operator))
    collective = collective_of(operator, bsym.source)
    number = (trace << 32) + index
    return Event(start=number, kind=collective.kind, bytes=collective.bytes, group=collective.group)


def median_seconds(traces: Sequence[Trace], rounds: int) -> list[list[float]]:
    """Run the lines of traces one by one, and return the median seconds of each line."""
    measured = [list(run_lines(traces)) for _ in range(rounds + 1)][1:]
    medians = [statistics.median(values) for values in zip(*measured, strict=True)]
    ends = [sum(len(trace.bound_symbols) for trace in traces[: number + 1]) for number in range(len(traces))]
    return [medians[end - len(trace.bound_symbols) : end] for trace, end in zip(traces, ends, strict=True)]


@torch.no_grad()
def run_lines(traces: Sequence[Trace]) -> Iterator[float]:
    """Run traces on random inputs, and yield the seconds of each line."""
    values: dict[str, Any] = {}
    for trace in traces:
        for proxy in trace.inputs:
            assert isinstance(proxy, TensorProxy)
            values[proxy.name] = values.get(proxy.name, random_tensor(proxy))
        for bsym in trace.bound_symbols:
            yield run_line(bsym, values)


def run_line(bsym: BoundSymbol, values: dict[str, Any]) -> float:
    """Run one line, store its results by name, and return its seconds."""
    seconds, result = evaluate_bound_symbol(bsym, values, timed_call)
    values.update((proxy.name, value) for proxy, value in bindings(bsym.output, result))
    return float(seconds)


def timed_call(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, Any]:
    """Return the seconds of a call and its result."""
    began = time.perf_counter()
    result = bsym.symbol.target(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began, result


def random_tensor(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor with the metadata of a proxy, and random numbers."""
    tensor = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
    return tensor.normal_() if tensor.is_floating_point() else tensor.zero_()
