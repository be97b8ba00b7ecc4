"""Keys and values that are repeated for groups of queries: the kernel reads them without the copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from thunder_core.tracing.ir.trace import Trace
from thunder_executors.packed_attention.attention import Attention, has_sizes, is_supported
from thunder_executors.sdpa import REPEATS, repeats_of


def repeated_attention(
    trace: Trace, attention: Mapping[int, Attention]
) -> dict[int, tuple[Attention, tuple[int, ...]]]:
    """Return attention by groups in place of attention to repeated keys and values, with the repeating places.

    Nothing but the attention may read the copies, and nothing may write to a tensor between them and the attention.
    """
    makers = {proxy.name: place for place, bsym in enumerate(trace.bound_symbols) for proxy in bsym.defines}
    found: dict[int, tuple[Attention, tuple[int, ...]]] = {}
    for place, whole in attention.items():
        places = repeats_of(trace.bound_symbols, makers, trace.bound_symbols[place])
        if not places or not are_only_read_by(trace, (*places, place)):
            continue
        if any(bsym.mutates for bsym in trace.bound_symbols[min(places) : place]):
            continue
        key, value = (trace.bound_symbols[first].inputs[0] for first in (places[0], places[len(REPEATS)]))
        grouped = replace(whole, key=key, value=value)  # type: ignore[arg-type]  # both are tensors, see `repeats_of`
        query, result, mask = grouped.query, grouped.result, grouped.mask
        if is_supported(query, grouped.key, grouped.value, result, mask) and has_sizes(grouped, grouped=True):
            found[place] = grouped, tuple(sorted(set(places)))
    return found


def are_only_read_by(trace: Trace, places: Iterable[int]) -> bool:
    """Whether only the bound symbols at some places read what all of them but the last define."""
    *repeating, last = places
    made = {proxy.name for place in repeating for proxy in trace.bound_symbols[place].defines}
    others = (bsym.inputs for place, bsym in enumerate(trace.bound_symbols) if place not in {*repeating, last})
    return not any(proxy.name in made for proxy in chain(*others, trace.outputs))
