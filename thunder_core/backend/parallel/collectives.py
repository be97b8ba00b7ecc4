"""Replace the operators of `thunder_parallel` in a trace by PyTorch's functional collectives, in buckets.

A bucket is a list of tensors that one collective communicates. The reduction of a bucket of gradients starts as soon
as all its gradients are computed, and the trace waits for the results as late as possible. A bucket of parameters is
gathered while the previous bucket is in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from thunder_core.backend.parallel.buckets import Bucket, BucketSizes, buckets_of, result_of, tensor_of
from thunder_core.backend.parallel.deliveries import Delivery, Reduced, differs
from thunder_core.backend.parallel.emitter import Emitter
from thunder_core.backend.parallel.flat_buckets import Reduction, coalesces, scatter_flat, sum_flat
from thunder_core.backend.parallel.offload import copy_to
from thunder_core.backend.parallel.operators import OPERATORS, row_padding, shard_rows
from thunder_core.backend.parallel.prefetch import spans_of_gradients, starts_one_ahead, starts_within
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.collectives import group_of

FUNCTIONAL: Any = torch.ops._c10d_functional
ATEN: Any = torch.ops.aten


def is_call(bsym: BoundSymbol, name: str) -> bool:
    """Whether a bound symbol calls the operator of `thunder_parallel` with this name."""
    packet = getattr(OPERATORS, name)
    return bsym.symbol.target in (packet, packet.default)


@dataclass(frozen=True)
class Schedule:
    """The transform that decides where collectives begin and end.

    `sizes` are the sizes of buckets. `max_reductions` is the maximum number of buckets of gradients that are reduced at
    the same time, or None for no limit. `reduce_dtype` is the dtype of the reduce-scatter of gradients, or None for the
    dtype of the gradients. `max_in_flight` is the maximum number of bytes of gathered parameters and full gradients
    that are alive at the same time, or None to gather one bucket ahead. With `pin_memory`, shards that are offloaded to
    the CPU are in pinned memory.
    """

    sizes: BucketSizes
    max_reductions: int | None = None
    reduce_dtype: torch.dtype | None = None
    max_in_flight: float | None = None
    pin_memory: bool = True

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with functional collectives instead of the operators of `thunder_parallel`."""
        plain = without_replicas(trace)
        if not any(is_call(bsym, name) for bsym in plain.bound_symbols for name in SCHEDULED_OPERATORS):
            return plain
        return Scheduling(plain, self).result()


def without_replicas(trace: Trace) -> Trace:
    """Return the trace without `replicate` and `copy_to_group`, which return their inputs unchanged."""
    names: dict[str, Proxy] = {}
    bsyms: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        if is_call(bsym, "replicate") or is_call(bsym, "copy_to_group"):
            tensor = tensor_of(bsym)
            names[result_of(bsym).name] = names.get(tensor.name, tensor)
        else:
            bsyms.append(bsym.rename(names) if names else bsym)
    if not names:
        return trace
    return trace.having(bsyms, made_by="read parameters", output=renamed_proxies(trace.output, names))


def with_all_reduces(trace: Trace) -> Trace:
    """Return the trace with all-reduces instead of `reduce_from_group`, the sum of tensor parallelism."""
    if not any(is_call(bsym, "reduce_from_group") for bsym in trace.bound_symbols):
        return trace
    emitter, bsyms = Emitter(trace), []
    for bsym in trace.bound_symbols:
        bsyms += all_reduce(emitter, bsym) if is_call(bsym, "reduce_from_group") else [bsym]
    return trace.having(bsyms, made_by="reduce parts")


def all_reduce(emitter: Emitter, bsym: BoundSymbol) -> list[BoundSymbol]:
    """Return the bound symbols that compute a call of `reduce_from_group`: the sum of the tensors of all ranks."""
    tensor, copies = tensor_of(bsym), []
    if not is_contiguous(tensor):
        copies = [contiguous_copy(emitter, tensor, at=bsym)]
        tensor = copies[0].output
    begin = emitter.call(FUNCTIONAL.all_reduce.default, tensor, "sum", bsym.args[1], at=bsym)
    wait = emitter.call(FUNCTIONAL.wait_tensor.default, begin.output, at=bsym, output=bsym.output)
    return [*copies, begin, wait]


@dataclass
class Scheduling:
    """The insertion of collectives into one trace.

    `before` and `reductions` map an index in the trace to the bound symbols that are inserted before this index: first
    the gathers (`before`), then the starts of reductions and the waits for them. The wait for a bucket comes before the
    start of the next bucket at the same index, so that the memory of the first is free. `ends` are inserted at the end
    of the trace. `makers` maps names to the indices of the bound symbols that define them. `over_replicas` maps the
    names of gradient shards to the bound symbols that average them over replicas. `delivery` computes the results of
    reductions.
    """

    trace: Trace
    schedule: Schedule
    before: defaultdict[int, list[BoundSymbol]] = field(default_factory=lambda: defaultdict(list))
    reductions: defaultdict[int, list[BoundSymbol]] = field(default_factory=lambda: defaultdict(list))
    ends: list[BoundSymbol] = field(default_factory=list)
    emitter: Emitter = field(init=False)
    makers: dict[str, int] = field(init=False)
    over_replicas: dict[str, BoundSymbol] = field(init=False)
    delivery: Delivery = field(init=False)

    def __post_init__(self) -> None:
        self.emitter = Emitter(self.trace)
        bsyms = enumerate(self.trace.bound_symbols)
        self.makers = {proxy.name: index for index, bsym in bsyms for proxy in bsym.defines}
        self.over_replicas = dict(averages_of_shards(self.trace))
        offloaded = frozenset(offloaded_results(self.trace, self.over_replicas))
        averaged = frozenset(self.over_replicas)
        self.delivery = Delivery(self.emitter, offloaded, averaged, self.schedule.pin_memory)

    def result(self) -> Trace:
        """Return the trace with collectives in place of the operators of `thunder_parallel`."""
        gathers = self._buckets("gather_parameter", by_layer=True)
        scatters = self._buckets("scatter_gradient", by_layer=True)
        for bucket, index in zip(gathers, self._starts(gathers, scatters), strict=True):
            self._gather(bucket, index)
        in_dtype = partial(scatter, dtype=self.schedule.reduce_dtype)
        self._reduce_all(scatters, in_dtype)
        self._reduce_all(self._buckets("average_gradient", by_layer=False), average)
        bsyms: list[BoundSymbol] = []
        for index, bsym in enumerate(self.trace.bound_symbols):
            bsyms += (*self.before[index], *self.reductions[index])
            bsyms += [] if any(is_call(bsym, kind) for kind in SCHEDULED_OPERATORS) else [bsym]
        end = len(self.trace.bound_symbols)
        bsyms += (*self.before[end], *self.reductions[end], *self.ends)
        return self.trace.having(bsyms, made_by="schedule collectives")

    def _buckets(self, kind: str, *, by_layer: bool) -> list[Bucket]:
        """Return the buckets of calls of one operator.

        Buckets of gradients are in the order in which gradients are computed, and buckets of parameters in the order in
        which parameters are first read.
        """
        members = [
            (index, bsym)
            for index, bsym in enumerate(self.trace.bound_symbols)
            if is_call(bsym, kind) and not self._averages_shard(bsym)
        ]
        if kind in REDUCTIONS:
            members = sorted(((self._index_after([bsym]), bsym) for _, bsym in members), key=itemgetter(0))
        buckets = buckets_of(members, self.schedule.sizes, by_layer=by_layer)
        return sorted(buckets, key=lambda bucket: bucket.first) if kind == "gather_parameter" else buckets

    def _index_after(self, bsyms: Sequence[BoundSymbol]) -> int:
        """Return the first index at which all inputs of the bound symbols are defined."""
        return max(
            (self.makers[proxy.name] + 1 for bsym in bsyms for proxy in bsym.inputs if proxy.name in self.makers),
            default=0,
        )

    def _starts(self, gathers: Sequence[Bucket], scatters: Sequence[Bucket]) -> list[int]:
        """Return the index at which the gather of each bucket starts; no gather starts before its shards exist."""
        earliest = [self._index_after(bucket.bsyms) for bucket in gathers]
        limit = self.schedule.max_in_flight
        if limit is None:
            return starts_one_ahead(gathers, earliest)
        waits = [self._wait_for(scatters, number) for number in range(len(scatters))]
        spans = spans_of_gradients(self.trace, scatters, waits, self.schedule.reduce_dtype)
        return starts_within(limit, self.trace, gathers, earliest, spans)

    def _gather(self, bucket: Bucket, index: int) -> None:
        """Insert the start of a bucket's gather at an index, and the wait before the first read of its parameters."""
        start, results = gather(self.emitter, bucket.bsyms, pin_memory=self.schedule.pin_memory)
        self.before[index] += start
        self.before[bucket.first] += results

    def _reduce_all(self, buckets: Sequence[Bucket], reduce: Reduce) -> None:
        """Insert the reduction of each bucket where all its gradients are computed, and a wait as late as possible."""
        for number, bucket in enumerate(buckets):
            reduced = reduce(self.delivery, bucket.bsyms)
            self.reductions[bucket.last] += reduced.start
            index, averages = self._wait_for(buckets, number), self._averages_of(bucket)
            self.reductions[index] += reduced.results
            end = self._index_of_wait(self._results_of(bucket), None)
            self._insert(reduced.copy_waits, index, end)
            if averages:
                self._average_shards(index, averages, end)

    def _wait_for(self, buckets: Sequence[Bucket], number: int) -> int:
        """Return the index at which the trace waits for the reduction of a bucket."""
        most, bucket = self.schedule.max_reductions, buckets[number]
        # With a limit of `most` reductions, the reduction of the bucket `number + most` must start after this wait.
        latest = buckets[number + most].last if most and number + most < len(buckets) else None
        return max(bucket.last, self._index_of_wait(self._results_of(bucket), latest))

    def _averages_of(self, bucket: Bucket) -> list[BoundSymbol]:
        """Return the bound symbols that average the gradient shards of a bucket over replicas."""
        names = [
            result_of(bsym).name for bsym in bucket.bsyms
        ]  # a list, because the order of a set varies between ranks
        return [self.over_replicas[name] for name in names if name in self.over_replicas]

    def _results_of(self, bucket: Bucket) -> set[str]:
        """Return the names of the results of a bucket of gradients, and of their averages over replicas."""
        return {result_of(bsym).name for bsym in (*bucket.bsyms, *self._averages_of(bucket))}

    def _average_shards(self, index: int, averages: Sequence[BoundSymbol], end: int) -> None:
        """Insert the average of reduced shards over replicas at an index, and the wait for it at the index `end`."""
        reduced = average(self.delivery, averages)
        self.reductions[index] += reduced.start
        self._insert([*reduced.results, *reduced.copy_waits], index, end)

    def _insert(self, bsyms: Sequence[BoundSymbol], index: int, end: int) -> None:
        """Insert bound symbols at the index `end`, but not before `index`; at the trace's end, insert them last."""
        if end < len(self.trace.bound_symbols):
            self.reductions[max(index, end)] += bsyms
        else:
            self.ends += bsyms

    def _index_of_wait(self, names: set[str], latest: int | None) -> int:
        """Return the index of the first reader of the results, or of the end of the trace; at most `latest`."""
        readers = (index for index, bsym in enumerate(self.trace.bound_symbols) if self._reads(bsym, names))
        first_reader: int = next(readers, len(self.trace.bound_symbols))
        return first_reader if latest is None else min(first_reader, latest)

    def _reads(self, bsym: BoundSymbol, names: set[str]) -> bool:
        """Whether a bound symbol that remains in the trace reads one of these names."""
        return reads(bsym, names) and not self._averages_shard(bsym)

    def _averages_shard(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol averages a gradient shard over replicas."""
        return is_call(bsym, "average_gradient") and tensor_of(bsym).name in self.over_replicas


def averages_of_shards(trace: Trace) -> Iterator[tuple[str, BoundSymbol]]:
    """Yield the averages over replicas of gradient shards, each with the name of its shard."""
    shards = {result_of(bsym).name for bsym in trace.bound_symbols if is_call(bsym, "scatter_gradient")}
    for bsym in trace.bound_symbols:
        if is_call(bsym, "average_gradient") and tensor_of(bsym).name in shards:
            yield tensor_of(bsym).name, bsym


def offloaded_results(trace: Trace, over_replicas: Mapping[str, BoundSymbol]) -> Iterator[str]:
    """Yield the names of the gradient shards, and of their averages over replicas, that are copied to the CPU."""
    for bsym in trace.bound_symbols:
        if is_call(bsym, "scatter_gradient") and device_of(bsym, "scatter_gradient") is not None:
            name = result_of(bsym).name
            yield name
            if name in over_replicas:
                yield result_of(over_replicas[name]).name


# The bound symbols that start a collective, and the bound symbols that wait for the collective.
StartAndWait = tuple[list[BoundSymbol], list[BoundSymbol]]
Reduce = Callable[[Delivery, Sequence[BoundSymbol]], Reduced]  # returns the bound symbols that reduce a bucket


def reads(bsym: BoundSymbol, names: set[str]) -> bool:
    """Whether a bound symbol reads one of these names."""
    return any(proxy.name in names for proxy in bsym.inputs)


def gather(emitter: Emitter, bsyms: Sequence[BoundSymbol], *, pin_memory: bool) -> StartAndWait:
    """Return two lists of bound symbols: the start of the gather of shards, and the wait, which drops padding rows.

    Before the gather, offloaded shards are copied to the device of their parameters, and shards are cast to the dtypes
    of their parameters.
    """
    group_name = bsyms[0].args[2]
    operator = FUNCTIONAL.all_gather_into_tensor_coalesced.default
    size = group_of(group_name).size()
    prepared: list[BoundSymbol] = []
    shards: list[TensorProxy] = []
    for bsym in bsyms:
        shards.append(tensor_of(bsym))
        if (device := device_of(bsym, "gather_parameter")) is not None:
            prepared.append(copy_to(emitter, shards[-1], device, non_blocking=pin_memory, at=bsym))
            shards[-1] = prepared[-1].output
        if differs(shards[-1], result_of(bsym).dtype):
            prepared.append(emitter.call(ATEN._to_copy.default, shards[-1], at=bsym, dtype=result_of(bsym).dtype))
            shards[-1] = prepared[-1].output
    begin = emitter.call(operator, shards, size, group_name, at=bsyms[0])
    ends: list[BoundSymbol] = []
    for bsym, pending in zip(bsyms, begin.output, strict=True):
        ends += wait_for_rows(emitter, bsym, pending, bsym.args[1])
    return [*prepared, begin], ends


def device_of(bsym: BoundSymbol, kind: str) -> torch.device | None:
    """Return the device to which a call of an operator copies its offloaded shard; None if nothing is copied."""
    position = DEVICE_POSITIONS[kind]
    return bsym.args[position] if len(bsym.args) > position else None


def scatter(delivery: Delivery, bsyms: Sequence[BoundSymbol], *, dtype: torch.dtype | None) -> Reduced:
    """Return the bound symbols that reduce-scatter gradients in a dtype, and divide the shards by the number of ranks.

    If `dtype` is None, each gradient is reduced in its own dtype.
    """
    emitter, group_name = delivery.emitter, bsyms[0].args[2]
    gradients, shards = list(map(tensor_of, bsyms)), [bsym.args[1] for bsym in bsyms]
    take = OPERATORS.take_unreduced_gradients.default
    taking = emitter.call(take, gradients, shards, dtype, at=bsyms[0], ordered=True)
    reduce = scatter_each if coalesces(group_name, gradients[0].device) else scatter_flat
    starts, ends, averages = reduce(emitter, group_name, bsyms, taking.output)
    return delivery.deliver([taking, *starts], bsyms, ends, averages)


def scatter_each(
    emitter: Emitter, group_name: str, bsyms: Sequence[BoundSymbol], gradients: Sequence[TensorProxy]
) -> Reduction:
    """Return the bound symbols that reduce-scatter gradients by one coalesced collective, and average the shards."""
    size = group_of(group_name).size()
    rows = [shard_rows(gradient.shape[0], size) * size for gradient in gradients]
    pads, tensors = pad_tensors(emitter, bsyms, gradients, rows)
    copies = [contiguous_copy(emitter, tensor, at=bsyms[0]) for tensor in tensors if not is_contiguous(tensor)]
    contiguous = {copy.args[0].name: copy.output for copy in copies}
    operator = FUNCTIONAL.reduce_scatter_tensor_coalesced.default
    tensors = [contiguous.get(tensor.name, tensor) for tensor in tensors]
    begin = emitter.call(operator, tensors, "sum", size, group_name, at=bsyms[0])
    ends: list[BoundSymbol] = []
    for bsym, pending in zip(bsyms, begin.output, strict=True):
        ends.append(emitter.call(FUNCTIONAL.wait_tensor.default, pending, at=bsym))
        ends.append(emitter.call(ATEN.mul.Tensor, ends[-1].output, 1 / size, at=bsym))
    return [*pads, *copies, begin], ends, [average.output for average in ends[1::2]]


def contiguous_copy(emitter: Emitter, tensor: TensorProxy, at: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol that copies a tensor into contiguous memory."""
    return emitter.call(ATEN.clone.default, tensor, at=at, memory_format=torch.contiguous_format)


def average(delivery: Delivery, bsyms: Sequence[BoundSymbol]) -> Reduced:
    """Return the bound symbols that divide gradients by the number of ranks, and sum them over the ranks.

    A gradient may be a reduced shard that was cast or copied. Then the shard before the cast or copy is summed
    (`delivery.unconverted`).
    """
    emitter, group_name = delivery.emitter, bsyms[0].args[2]
    gradients = [delivery.unconverted.get(tensor_of(bsym).name, tensor_of(bsym)) for bsym in bsyms]
    parameters, factor = [bsym.args[1] for bsym in bsyms], 1 / group_of(group_name).size()
    is_coalesced = coalesces(group_name, gradients[0].device)
    take = OPERATORS.take_gradients.default if is_coalesced else OPERATORS.take_into_flat.default
    taking = emitter.call(take, gradients, parameters, factor, at=bsyms[0], ordered=True)
    add_up = sum_each if is_coalesced else sum_flat
    starts, ends, averages = add_up(emitter, group_name, bsyms, taking.output)
    return delivery.deliver([taking, *starts], bsyms, ends, averages)


def sum_each(
    emitter: Emitter, group_name: str, bsyms: Sequence[BoundSymbol], gradients: Sequence[TensorProxy]
) -> Reduction:
    """Return the bound symbols that sum gradients over the ranks by one coalesced collective."""
    operator = FUNCTIONAL.all_reduce_coalesced.default
    begin = emitter.call(operator, gradients, "sum", group_name, at=bsyms[0])
    pairs = zip(bsyms, begin.output, strict=True)
    ends = [emitter.call(FUNCTIONAL.wait_tensor.default, pending, at=bsym) for bsym, pending in pairs]
    return [begin], ends, [wait.output for wait in ends]


REDUCTIONS = ("average_gradient", "scatter_gradient")
DEVICE_POSITIONS = {"gather_parameter": 6, "scatter_gradient": 3}  # of the argument `device` of the operators
SCHEDULED_OPERATORS = ("gather_parameter", *REDUCTIONS)


def pad_tensors(
    emitter: Emitter, bsyms: Sequence[BoundSymbol], unfilled: Sequence[TensorProxy], rows: Sequence[int]
) -> tuple[list[BoundSymbol], list[TensorProxy]]:
    """Pad each tensor with rows of zeros to its number of rows in `rows`. Padding belongs to the tensor's bound symbol.

    Returns the bound symbols that pad, and the padded tensors.
    """
    pads: list[BoundSymbol] = []
    tensors: list[TensorProxy] = []
    for bsym, tensor, count in zip(bsyms, unfilled, rows, strict=True):
        if padding := row_padding(len(tensor.shape), count - tensor.shape[0]):
            pads.append(emitter.call(ATEN.constant_pad_nd.default, tensor, padding, at=bsym))
        tensors.append(pads[-1].output if padding else tensor)
    return pads, tensors


def is_contiguous(tensor: TensorProxy) -> bool:
    """Whether a tensor is contiguous."""
    return torch.empty_strided(tensor.shape, tensor.stride, device="meta").is_contiguous()


def wait_for_rows(emitter: Emitter, at: BoundSymbol, pending: TensorProxy, rows: int) -> list[BoundSymbol]:
    """Return the bound symbols that wait for a tensor, and select its first rows as the result of `at`."""
    is_whole = pending.shape[0] == rows
    wait = emitter.call(FUNCTIONAL.wait_tensor.default, pending, at=at, output=at.output if is_whole else None)
    if is_whole:
        return [wait]
    return [wait, emitter.call(ATEN.narrow_copy.default, wait.output, 0, 0, rows, at=at, output=at.output)]
