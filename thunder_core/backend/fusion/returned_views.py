"""Views that a trace returns, and that share memory with one of its inputs or with another result.

Autograd must know that such a result is a view, because the view and its base share the count of writes: a write to one
of them between a forward and its backward is an error. Compilers of regions return views that autograd does not know,
so these views stay outside of regions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from thunder_core.tracing.analysis.aliasing import alias_sets, computes_nothing
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


def returned_views(trace: Trace) -> frozenset[BoundSymbol]:
    """Return the bound symbols that compute the returned views, and the views between these and their bases."""
    returned = {proxy.name for proxy in trace.outputs if isinstance(proxy, TensorProxy)}
    views = [bsym for bsym in trace.bound_symbols if is_view_alone(bsym)]
    if not any(proxy.name in returned for bsym in views for proxy in bsym.defines):
        return frozenset()
    visible = returned | {proxy.name for proxy in trace.inputs}
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    visible_names = Counter(aliasing.representative(name) for name in visible)
    needed = {name for name in returned if visible_names[aliasing.representative(name)] > 1}
    found = []
    for bsym in reversed(views):
        if any(proxy.name in needed for proxy in bsym.defines):
            found.append(bsym)
            needed.update(proxy.name for proxy in bsym.inputs)
    return frozenset(found)


def is_view_alone(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol only returns views of its inputs, at any place before their last reads."""
    return bool(bsym.operations) and not bsym.keeps_position and all(map(computes_nothing, bsym.operations))


def move_views(trace: Trace, views: Collection[BoundSymbol]) -> Trace:
    """Return the trace with views of inputs at its start, and views that nothing else reads at its end.

    There they divide no region. The other views stay at their positions.
    """
    if not views:
        return trace
    available = {proxy.name for proxy in trace.inputs}
    first = [bsym for bsym in trace.bound_symbols if bsym in views and is_computed_from(bsym, available)]
    unread = {id(bsym) for bsym in without_readers(trace.bound_symbols, views)} - set(map(id, first))
    last = [bsym for bsym in trace.bound_symbols if id(bsym) in unread]
    moved = unread | set(map(id, first))
    others = [bsym for bsym in trace.bound_symbols if id(bsym) not in moved]
    return replace(trace, bound_symbols=(*first, *others, *last))


def is_computed_from(bsym: BoundSymbol, available: set[str]) -> bool:
    """Whether all inputs of a bound symbol are available; if so, its results become available, too."""
    if any(proxy.name not in available for proxy in bsym.inputs):
        return False
    available.update(proxy.name for proxy in bsym.defines)
    return True


def without_readers(bsyms: Iterable[BoundSymbol], views: Collection[BoundSymbol]) -> Iterable[BoundSymbol]:
    """Yield the views that no bound symbol reads, except views without readers."""
    read = set[str]()
    for bsym in reversed(tuple(bsyms)):
        if bsym in views and not any(proxy.name in read for proxy in bsym.defines):
            yield bsym
        else:
            read.update(proxy.name for proxy in bsym.inputs)
