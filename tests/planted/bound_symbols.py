"""Faults of transforms: one bound symbol of a trace is replaced by another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves


def with_other_constant(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol with each float among its arguments slightly larger, also in its subsymbols."""

    def change(leaf: Any) -> Any:
        return leaf * 1.01 if type(leaf) is float and leaf not in (0.0, float("inf"), -float("inf")) else leaf

    args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), change)
    return replace(bsym, args=args, kwargs=kwargs, subsymbols=tuple(map(with_other_constant, bsym.subsymbols)))


def with_swapped_operands(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol with its first two tensors of equal shape exchanged."""
    tensors = [proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy)]
    pairs = ((a, b) for n, a in enumerate(tensors) for b in tensors[n + 1 :] if alike(a, b))
    pair = next(pairs, None)
    return bsym if pair is None else bsym.rename({pair[0].name: pair[1], pair[1].name: pair[0]})


def alike(first: TensorProxy, second: TensorProxy) -> bool:
    """Whether two tensors have the same shape, strides and dtype."""
    return (first.shape, first.stride, first.dtype) == (second.shape, second.stride, second.dtype)


def reading_another(bsym: BoundSymbol, earlier: list[TensorProxy]) -> BoundSymbol:
    """The bound symbol with one of its input tensors replaced by another of the same metadata."""
    for proxy in bsym.inputs:
        if isinstance(proxy, TensorProxy):
            replacement = next(
                (tensor for tensor in reversed(earlier) if tensor.name != proxy.name and alike(tensor, proxy)), None
            )
            if replacement is not None:
                return bsym.rename({proxy.name: replacement})
    return bsym


def changed_lines(trace: Trace) -> Iterator[tuple[str, str, Trace]]:
    """Each way to change one line of a trace: the kind, the name that the line defines, and the changed trace."""
    earlier = [proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy)]
    for index, bsym in enumerate(trace.bound_symbols):
        if bsym.tensors and not bsym.has_effect:
            yield from changes_of(trace, index, earlier)
        earlier += bsym.tensors


def changes_of(trace: Trace, place: int, earlier: list[TensorProxy]) -> Iterator[tuple[str, str, Trace]]:
    """Each way to change the line at an index."""
    bsym = trace.bound_symbols[place]
    changes = {
        "another constant": with_other_constant(bsym),
        "swapped operands": with_swapped_operands(bsym),
        "reads another": reading_another(bsym, earlier),
    }
    for kind, changed_bsym in changes.items():
        if changed_bsym.args != bsym.args or dict(changed_bsym.kwargs) != dict(bsym.kwargs):
            yield kind, bsym.tensors[0].name, with_line(trace, place, changed_bsym)
    source = next(
        (proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and alike(proxy, bsym.tensors[0])), None
    )
    if source is not None and len(bsym.tensors) == 1:
        yield "left out", bsym.tensors[0].name, without_line(trace, place, source)


def with_line(trace: Trace, place: int, bsym: BoundSymbol) -> Trace:
    """The trace with the line at an index replaced."""
    bsyms = (*trace.bound_symbols[:place], bsym, *trace.bound_symbols[place + 1 :])
    return trace.having(bsyms, made_by="planted")


def without_line(trace: Trace, place: int, source: TensorProxy) -> Trace:
    """The trace without a line, and the tensor that later lines read instead of its result."""
    name = trace.bound_symbols[place].tensors[0].name
    rest = (bsym.rename({name: source}) for bsym in trace.bound_symbols[place + 1 :])
    output = replace_leaves(
        trace.output, lambda leaf: source if isinstance(leaf, Proxy) and leaf.name == name else leaf
    )
    return trace.having((*trace.bound_symbols[:place], *rest), made_by="planted", output=output)


@dataclass(frozen=True)
class Planted(Transform):
    """A transform that makes the change with a given number."""

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")
    number: int = 0

    def __call__(self, trace: Trace) -> Trace:
        """The changed trace, or the trace itself if there are fewer changes."""
        return next((one for index, (_, _, one) in enumerate(changed_lines(trace)) if index == self.number), trace)


__all__ = ["Planted", "changed_lines", "leaves", "torch"]
