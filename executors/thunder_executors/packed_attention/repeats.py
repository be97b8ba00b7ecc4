"""Find attention to keys and values that are repeated for groups of queries. The kernel needs no repeated copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from thunder_core.tracing.ir.trace import Trace
from thunder_executors.packed_attention.attention import Attention, is_supported, sizes_fit
from thunder_executors.sdpa import REPEATS, repeats_of


def repeated_attention(
    trace: Trace, attention: Mapping[int, Attention]
) -> dict[int, tuple[Attention, tuple[int, ...]]]:
    """Return grouped-query attention in place of attention to repeated keys and values, by index of the attention.

    Each attention comes with the indices of the bound symbols that repeat its keys and values. Only the attention may
    read the repeated tensors, and no bound symbol between the first repetition and the attention may write to a tensor.
    """
    producers = {proxy.name: index for index, bsym in enumerate(trace.bound_symbols) for proxy in bsym.defines}
    by_groups: dict[int, tuple[Attention, tuple[int, ...]]] = {}
    for index, repeated in attention.items():
        indices = repeats_of(trace.bound_symbols, producers, trace.bound_symbols[index])
        if not indices or not are_read_only_by(trace, (*indices, index)):
            continue
        if any(bsym.mutates for bsym in trace.bound_symbols[min(indices) : index]):
            continue
        key, value = (trace.bound_symbols[first].inputs[0] for first in (indices[0], indices[len(REPEATS)]))
        grouped = replace(repeated, key=key, value=value)  # type: ignore[arg-type]  # both are tensors, see `repeats_of`
        query, result, mask = grouped.query, grouped.result, grouped.mask
        if is_supported(query, grouped.key, grouped.value, result, mask) and sizes_fit(grouped, grouped=True):
            by_groups[index] = grouped, tuple(sorted(set(indices)))
    return by_groups


def are_read_only_by(trace: Trace, indices: Iterable[int]) -> bool:
    """Whether only these bound symbols read the results of these bound symbols; the last one's results do not matter.

    A result that the trace returns counts as read by another bound symbol.
    """
    *repeating, last = indices
    defined = {proxy.name for index in repeating for proxy in trace.bound_symbols[index].defines}
    inputs_of_others = (
        bsym.inputs for index, bsym in enumerate(trace.bound_symbols) if index not in {*repeating, last}
    )
    return not any(proxy.name in defined for proxy in chain(*inputs_of_others, trace.outputs))
