"""Find tensors whose memory was allocated, but not initialized, so that their values differ from call to call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_core.tracing.analysis.aliasing import alias_sets, computes_nothing
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol

aten = torch.ops.aten
ALLOCATIONS = frozenset(
    {
        *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
        *(aten.new_empty.default, aten.new_empty_strided.default),
    }
)


def is_uninitialized(proxy: Proxy, bsyms: Sequence[BoundSymbol]) -> bool:
    """Whether a tensor is a view or a copy of an allocation to which no earlier bound symbol has written."""
    names = _names_from_allocation(proxy, bsyms)
    if not names:
        return False
    memory = alias_sets(bsyms)
    written = {memory.representative(value.name) for bsym in bsyms if bsym.mutates for value in bsym.inputs}
    return written.isdisjoint(map(memory.representative, names))


def _names_from_allocation(proxy: Proxy, bsyms: Sequence[BoundSymbol]) -> set[str]:
    """If a tensor is an allocation, or a view or copy of one, return the names from the tensor back to the allocation.

    Otherwise, the set is empty.
    """
    names = {proxy.name}
    for bsym in reversed(bsyms):
        if names.isdisjoint(output.name for output in bsym.outputs):
            continue
        first, *others = bsym.at_level("aten") or [bsym]
        if not all(map(_passes_values_on, others)):
            return set()
        if first.symbol.target in ALLOCATIONS:
            return names
        if not _passes_values_on(first):
            return set()
        names.update(value.name for value in bsym.inputs)
    return set()


def _passes_values_on(operation: BoundSymbol) -> bool:
    """Whether an aten operation returns a view or a copy of its input."""
    return operation.symbol.target is aten.clone.default or computes_nothing(operation)
