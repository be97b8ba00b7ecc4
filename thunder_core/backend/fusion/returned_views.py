"""Views that a trace returns, and that share memory with one of its inputs or with another result.

Autograd must know that such a result is a view, because the view and its base share the count of writes: a write to one
of them between a forward and its backward is an error. Compilers of regions return views that autograd does not know,
so these views stay outside of regions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from thunder_core.tracing.analysis.aliasing import alias_sets, computes_nothing
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import CHECK_NAMES


def returned_views(trace: Trace) -> frozenset[BoundSymbol]:
    """Return the bound symbols that compute the returned views, and the views between these and their bases."""
    returned = {proxy.name for proxy in trace.outputs if isinstance(proxy, TensorProxy)}
    makers = (bsym for bsym in trace.bound_symbols if any(proxy.name in returned for proxy in bsym.defines))
    if not any(map(is_view_alone, makers)):
        return frozenset()
    visible = returned | {proxy.name for proxy in trace.inputs}
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    visible_names = Counter(aliasing.representative(name) for name in visible)
    needed = {name for name in returned if visible_names[aliasing.representative(name)] > 1}
    found = []
    for bsym in reversed(trace.bound_symbols):
        if any(proxy.name in needed for proxy in bsym.defines) and is_view_alone(bsym):
            found.append(bsym)
            needed.update(proxy.name for proxy in bsym.inputs)
    return frozenset(found)


def is_view_alone(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol only returns views of its inputs, at any place before their last reads."""
    return bool(bsym.operations) and not bsym.keeps_position and all(map(computes_nothing, bsym.operations))


def move_views(trace: Trace, views: frozenset[BoundSymbol]) -> Trace:
    """Return the trace with views of inputs at its start, and views that nothing else reads at its end.

    There they divide no region. The other views stay at their positions, and so do views that would move across a
    change of state.
    """
    if not views:
        return trace
    bsyms = trace.bound_symbols
    changes = [index for index, bsym in enumerate(bsyms) if may_change_views(bsym)]
    start, stop = (changes[0], changes[-1] + 1) if changes else (len(bsyms), 0)
    first = views_of_inputs(trace, views.intersection(bsyms[:start]))
    last = [bsym for bsym in views_without_readers(trace, views.intersection(bsyms[stop:])) if bsym not in first]
    moved = {*first, *last}
    others = [bsym for bsym in bsyms if bsym not in moved]
    return replace(trace, bound_symbols=(*first, *others, *last))


def may_change_views(bsym: BoundSymbol) -> bool:
    """Whether a view before a bound symbol may differ from the same view after it.

    Such a bound symbol switches grad mode or inference mode, or changes a tensor (`x.requires_grad_()`, `x.data = y`).
    Random operations and checks of values are in order, too, but change no view.
    """
    return bsym.keeps_position and not bsym.operations and bsym.symbol.name not in CHECK_NAMES


def views_of_inputs(trace: Trace, views: Collection[BoundSymbol]) -> list[BoundSymbol]:
    """Return the views of inputs, and the views of these, in order."""
    available = {proxy.name for proxy in trace.inputs}
    found = []
    for bsym in trace.bound_symbols:
        if bsym in views and all(proxy.name in available for proxy in bsym.inputs):
            found.append(bsym)
            available.update(proxy.name for proxy in bsym.defines)
    return found


def views_without_readers(trace: Trace, views: Collection[BoundSymbol]) -> list[BoundSymbol]:
    """Return the views that no bound symbol reads, except views without readers, in order."""
    read = set[str]()
    found = []
    for bsym in reversed(trace.bound_symbols):
        if bsym in views and not any(proxy.name in read for proxy in bsym.defines):
            found.append(bsym)
        else:
            read.update(proxy.name for proxy in bsym.inputs)
    return found[::-1]
