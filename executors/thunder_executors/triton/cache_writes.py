"""Join rotary embedding with the writes of rotated keys, and of values, into a `StaticCache` of transformers.

A layer of the cache computes the slots of new tokens as `torch.arange(n) + count`, with its count of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.triton.cached_rotary import AT_POSITIONS, rotary_into_cache
from thunder_executors.triton.hugging_face import turn

WRITE = "torch.Tensor.index_copy_"
ADDITIONS = frozenset({"torch.Tensor.__add__", "torch.Tensor.add", "torch.add", "_operator.add", "operator.add"})
ARANGE = "torch.arange"


def turn_into_cache(*tensors: torch.Tensor) -> torch.Tensor:
    """Return the rotated query, and write the rotated key and the value into their caches."""
    result: torch.Tensor = rotary_into_cache(*tensors)
    return result


@dataclass(frozen=True)
class CacheUpdate:
    """The indices in a trace of a rotary embedding, of the writes of keys and values, and of the sum of their slots."""

    turn: int
    keys: int
    values: int
    positions: int

    @property
    def index(self) -> int:
        """The index at which the joined bound symbol replaces the others."""
        return max(self.keys, self.values)


def join_cache_writes(trace: Trace, executor: str) -> Trace:
    """Return the trace with each rotary embedding and the writes into its cache as one bound symbol."""
    if not any(bsym.symbol.target is turn for bsym in trace.bound_symbols):
        return trace
    readers = readers_of(trace)
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    recorded = tracked_by_autograd(trace)
    replaced: dict[int, list[BoundSymbol]] = {}
    for update in updates_in(trace.bound_symbols, readers):
        bsym = joined_call(trace.bound_symbols, update, executor)
        is_recorded = any(proxy.name in recorded for proxy in (*bsym.inputs, *bsym.outputs))
        if not is_recorded and is_joinable(trace.bound_symbols, update, readers, aliasing):
            replaced |= {update.turn: [], update.keys: [], update.values: [], update.index: [bsym]}
            replaced |= {index: [] for index in unread_after(trace.bound_symbols, update, readers)}
    bsyms = [new for index, bsym in enumerate(trace.bound_symbols) for new in replaced.get(index, [bsym])]
    return trace.having(bsyms, made_by=trace.made_by) if replaced else trace


def readers_of(trace: Trace) -> Mapping[str, set[int]]:
    """Return the indices of the bound symbols that read each name; -1 stands for the outputs of the trace."""
    readers: dict[str, set[int]] = {}
    for index, bsym in enumerate(trace.bound_symbols):
        for proxy in bsym.inputs:
            readers.setdefault(proxy.name, set()).add(index)
    for proxy in trace.outputs:
        readers.setdefault(proxy.name, set()).add(-1)
    return readers


def updates_in(bsyms: Sequence[BoundSymbol], readers: Mapping[str, set[int]]) -> Iterator[CacheUpdate]:
    """Yield each rotary embedding whose keys are written into a cache, with a write of values into the same slots."""
    producers = {proxy.name: index for index, bsym in enumerate(bsyms) for proxy in bsym.defines}
    for index, bsym in enumerate(bsyms):
        written = readers.get(bsym.output[1].name, set()) if bsym.symbol.target is turn else set()
        if len(written) != 1 or not is_write(bsyms, keys := next(iter(written))):
            continue
        positions = bsyms[keys].args[2]
        value_writes = [reader for reader in readers[positions.name] - {keys} if is_write(bsyms, reader)]
        producer = producers.get(positions.name, -1)
        if (
            len(value_writes) == 1
            and bsyms[value_writes[0]].args[2].name == positions.name
            and is_count(bsyms, producers, producer)
        ):
            yield CacheUpdate(index, keys, value_writes[0], producer)


def is_write(bsyms: Sequence[BoundSymbol], index: int) -> bool:
    """Whether a bound symbol writes to slots of a cache, by their indices."""
    if index < 0:
        return False
    bsym = bsyms[index]
    fits = bsym.symbol.name == WRITE and not bsym.executor and not bsym.kwargs and len(bsym.args) == 4
    return fits and bsym.args[1] in (AT_POSITIONS, AT_POSITIONS - 4)


def is_count(bsyms: Sequence[BoundSymbol], producers: Mapping[str, int], index: int) -> bool:
    """Whether a bound symbol computes consecutive slots from a count of tokens: `torch.arange(n) + count`."""
    if index < 0 or bsyms[index].symbol.name not in ADDITIONS or len(bsyms[index].args) != 2 or bsyms[index].kwargs:
        return False
    counted, count = bsyms[index].args
    producer = producers.get(counted.name, -1) if isinstance(counted, TensorProxy) else -1
    is_consecutive = producer >= 0 and bsyms[producer].symbol.name == ARANGE and len(bsyms[producer].args) == 1
    return is_consecutive and isinstance(count, TensorProxy) and (count.dtype, len(count.shape)) == (torch.int64, 0)


def unread_after(bsyms: Sequence[BoundSymbol], update: CacheUpdate, readers: Mapping[str, set[int]]) -> Iterator[int]:
    """Yield the indices of the bound symbols that compute the slots, unless other bound symbols read the slots."""
    positions = bsyms[update.positions]
    if readers[positions.output.name] <= {update.keys, update.values}:
        yield update.positions
        counted = positions.args[0]
        if readers[counted.name] == {update.positions}:
            yield next(
                index for index, bsym in enumerate(bsyms) if any(proxy.name == counted.name for proxy in bsym.defines)
            )


def joined_call(bsyms: Sequence[BoundSymbol], update: CacheUpdate, executor: str) -> BoundSymbol:
    """Return one bound symbol for a rotary embedding and the writes of its keys and of values."""
    turned, keys, values = bsyms[update.turn], bsyms[update.keys], bsyms[update.values]
    query, key, cos, sin = turned.args
    start = bsyms[update.positions].args[1]
    parts = sorted({update.turn, update.keys, update.values, update.positions})
    return replace(
        turned,
        symbol=Symbol.of_function(turn_into_cache),
        args=(query, key, values.args[3], cos, sin, keys.args[0], values.args[0], start),
        kwargs={},
        output=turned.output[0],
        subsymbols=tuple(bsyms[index] for index in parts),
        mutates=(*keys.mutates, *values.mutates),
        executor=executor,
    )


def is_joinable(
    bsyms: Sequence[BoundSymbol], update: CacheUpdate, readers: Mapping[str, set[int]], aliasing: AliasSets
) -> bool:
    """Whether the bound symbols can be joined, and the kernel supports the tensors.

    No write in between may change an input, and only later bound symbols may read the results.
    """
    turned, keys, values = bsyms[update.turn], bsyms[update.keys], bsyms[update.values]
    inputs = [*turned.args, keys.args[0], values.args[0], values.args[3], bsyms[update.positions].args[1]]
    own = {update.turn, update.keys, update.values}
    first = min(update.turn, update.positions)
    between = [bsyms[index] for index in range(first, update.index) if index not in own]
    written = {aliasing.representative(name) for bsym in between for name in bsym.mutates}
    is_unwritten = not written & representatives(inputs, aliasing)
    caches = (keys.args[0], values.args[0])
    new = {result.name for bsym in (keys, values) for result in bsym.outputs} - {cache.name for cache in caches}
    are_read_later = all(
        reader < 0 or reader > update.index
        for name in (turned.output[0].name, *(cache.name for cache in caches))
        for reader in readers.get(name, set()) - own
        if reader > first or reader < 0
    )
    return (
        is_unwritten and are_read_later and not new and are_disjoint(caches, inputs, aliasing) and is_supported(inputs)
    )


def representatives(proxies: Iterable[Any], aliasing: AliasSets) -> set[str]:
    """Return the alias representatives of tensors."""
    return {aliasing.representative(proxy.name) for proxy in proxies}


def are_disjoint(caches: Sequence[Any], inputs: Sequence[Any], aliasing: AliasSets) -> bool:
    """Whether two caches share memory neither with each other nor with other inputs."""
    others = representatives([proxy for proxy in inputs if all(proxy is not cache for cache in caches)], aliasing)
    return len(representatives(caches, aliasing)) == 2 and not representatives(caches, aliasing) & others


def is_supported(inputs: Sequence[Any]) -> bool:
    """Whether the kernel supports the tensors: floats of one dtype, keys and values of one width, dense caches."""
    _, key, _, _, keys, values, value, _ = inputs
    heads_and_widths = {(proxy.shape[1], proxy.shape[3]) for proxy in (key, value, keys, values)}
    are_dense = keys.stride[-1] == 1 and values.stride[-1] == 1
    return len({proxy.dtype for proxy in inputs[:-1]}) == 1 and len(heads_and_widths) == 1 and are_dense
