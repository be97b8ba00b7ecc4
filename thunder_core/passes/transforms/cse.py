"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import may_return_view
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd
from thunder_core.tracing.analysis.structure import constant_key
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import EXPECTATIONS

AUTOCAST = torch.ops.aten._to_copy.default  # the operation by which torch.autocast casts


@dataclass(frozen=True)
class ShareCommonExpressions(Transform):
    """Compute once what is computed several times from the same tensors.

    Transformer layers each derive the same masks and positions. Two bound symbols are shared when they call the same
    symbol with the same arguments, in between no bound symbol changes a state, and no tensor of the trace is written
    to, since results that were separate tensors become one. For the same reason tensors keep their own bound symbols
    that somebody can tell apart (`distinct_tensors`), and so do those whose gradients would be added with fewer bits
    (`rounded_tensors`).
    """

    before: ClassVar[tuple[str, ...]] = ("dce",)
    cleans_up: ClassVar[bool] = True

    def __call__(self, trace: Trace) -> Trace:
        """The trace with repeated bound symbols dropped and their results renamed to the first one's."""
        if any(bsym.mutates for bsym in trace.bound_symbols):
            return trace.having(trace.bound_symbols, made_by="share common expressions")
        distinct = distinct_tensors(trace) | rounded_tensors(trace)
        first: dict[Hashable, BoundSymbol] = {}
        names: dict[str, Proxy] = {}
        kept: list[BoundSymbol] = []
        for original in trace.bound_symbols:
            bsym = original.renamed(names) if names else original
            if bsym.ordered:
                first.clear()
            key = None if bsym.keeps_place or any(p.name in distinct for p in bsym.defines) else signature(bsym)
            earlier = first.setdefault(key, bsym) if key is not None else bsym
            if earlier is bsym:
                kept.append(bsym)
            else:
                names |= {old.name: new for old, new in zip(bsym.outputs, earlier.outputs, strict=True)}
        return trace.having(kept, made_by="share common expressions")


def distinct_tensors(trace: Trace) -> set[str]:
    """The names of all tensors that have to stay tensors of their own, though an equal one may be there.

    These are what the trace returns, what is told to autograd (a hook, `retain_grad`) or given to others that change a
    state and of which no more is known, and all that may share memory with one of these.
    """
    names = {proxy.name for proxy in trace.outputs}
    for bsym in reversed(trace.bound_symbols):
        is_told = bsym.ordered and not bsym.operations and bsym.symbol.name not in EXPECTATIONS
        if is_told or (may_return_view(bsym) and any(proxy.name in names for proxy in bsym.outputs)):
            names |= {proxy.name for proxy in bsym.inputs}
    return names


def rounded_tensors(trace: Trace) -> set[str]:
    """The names of tensors with fewer bits than what they are made of, where autograd follows that.

    PyTorch gives a cast back before it adds gradients, so that those of two casts are added with all bits. Of one cast
    that several read they would be added with its own. That is what torch.autocast does to a parameter in float32, of
    which it keeps the cast: those of inputs that are leaves are shared.
    """
    followed = followed_by_autograd(trace)
    kept = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    return {
        tensor.name
        for bsym in trace.bound_symbols
        for tensor in bsym.tensors
        if tensor.name in followed
        and not (bsym.symbol.target is AUTOCAST and bsym.args[0].name in kept)
        and any(
            isinstance(operand, TensorProxy)
            and operand.name in followed
            and spacing(operand.dtype) < spacing(tensor.dtype)
            for operand in bsym.inputs
        )
    }


def spacing(dtype: torch.dtype) -> float:
    """The distance of numbers of a dtype near one; one for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 1.0


def signature(bsym: BoundSymbol) -> Hashable:
    """A key that is equal for bound symbols that compute the same from the same tensors."""
    return (bsym.symbol, _hashable(bsym.args), _hashable(dict(bsym.kwargs)))


def _hashable(value: Any) -> Hashable:
    kind = type(value)
    if isinstance(value, Proxy):
        return (kind, value.name)
    if isinstance(value, tuple | list):
        return (kind, *map(_hashable, value))
    if isinstance(value, dict):
        return (kind, *((key, _hashable(item)) for key, item in value.items()))
    if kind is slice:
        return (kind, *map(_hashable, (value.start, value.stop, value.step)))
    return constant_key(value)
