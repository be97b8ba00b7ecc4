"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder_core.analysis.aliasing import may_return_view
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.recipe import Transform


@dataclass(frozen=True)
class ShareCommonExpressions(Transform):
    """Compute once what is computed several times from the same tensors.

    Transformer layers each derive the same masks and positions. Two bound symbols are shared when they call the same
    symbol with the same arguments, in between no bound symbol changes a state, and no tensor of the trace is written
    to, since results that were separate tensors become one. For the same reason tensors that the trace returns, and
    those whose memory a returned view may share, keep their own bound symbols.
    """

    before: ClassVar[tuple[str, ...]] = ("dce",)

    def __call__(self, trace: Trace) -> Trace:
        """The trace with repeated bound symbols dropped and their results renamed to the first one's."""
        if any(bsym.mutates for bsym in trace.bound_symbols):
            return trace.having(trace.bound_symbols, made_by="share common expressions")
        returned = returned_memory(trace)
        first: dict[Hashable, BoundSymbol] = {}
        names: dict[str, Proxy] = {}
        kept: list[BoundSymbol] = []
        for original in trace.bound_symbols:
            bsym = original.renamed(names) if names else original
            if bsym.ordered:
                first.clear()
            key = None if bsym.ordered or any(p.name in returned for p in bsym.defines) else signature(bsym)
            earlier = first.setdefault(key, bsym) if key is not None else bsym
            if earlier is bsym:
                kept.append(bsym)
            else:
                names |= {old.name: new for old, new in zip(bsym.outputs, earlier.outputs, strict=True)}
        return trace.having(kept, made_by="share common expressions")


def returned_memory(trace: Trace) -> set[str]:
    """The names of all tensors that may share memory with what the trace returns."""
    found = {proxy.name for proxy in trace.outputs}
    for bsym in reversed(trace.bound_symbols):
        if may_return_view(bsym) and any(proxy.name in found for proxy in bsym.outputs):
            found |= {proxy.name for proxy in bsym.inputs}
    return found


def signature(bsym: BoundSymbol) -> Hashable | None:
    """A key that is equal for bound symbols that compute the same; None for one that cannot be compared."""
    parts: list[Hashable] = [bsym.symbol.name]
    for value in (bsym.args, dict(bsym.kwargs)):
        part = _hashable(value)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _hashable(value: Any) -> Hashable | None:
    """A value with its type, so that 1, 1.0 and True differ, and -0.0 and 0.0."""
    if isinstance(value, TensorProxy):
        return ("tensor", value.name)
    if isinstance(value, tuple | list):
        parts = [_hashable(item) for item in value]
        return None if None in parts else (type(value).__name__, *parts)
    if isinstance(value, dict):
        items = [(key, _hashable(item)) for key, item in value.items()]
        return None if any(item is None for _, item in items) else ("dict", *items)
    if isinstance(value, slice):
        return ("slice", _hashable((value.start, value.stop, value.step)))
    try:
        hash(value)
    except TypeError:
        return None
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)
