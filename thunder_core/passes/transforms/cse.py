"""Common subexpression elimination."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import may_return_view
from thunder_core.tracing.analysis.copied_tensors import copied_tensor, differing_copies
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.analysis.structure import constant_key
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import CHECK_NAMES

AUTOCAST_CAST = torch.ops.aten._to_copy.default  # the operation with which torch.autocast casts


@dataclass(frozen=True)
class ShareCommonExpressions(Transform):
    """Compute repeated expressions of the same tensors once.

    For example, each layer of a transformer computes the same masks and positions. The second of two bound symbols is
    dropped if both call the same symbol with the same arguments, and no bound symbol in between changes a state.
    Because two result tensors become one tensor, nothing is dropped in a trace that writes to tensors. A bound symbol
    also stays if a reader can distinguish its result from an equal tensor (`distinct_tensors`), or if gradients of its
    result would be added with fewer bits (`narrowed_tensors`).

    A copy of a tensor, such as `torch.cat` with an empty tensor, is dropped, and its readers read the original tensor.
    Copies that a reader can distinguish from the original tensors (`differing_copies`) stay.
    """

    before: ClassVar[tuple[str, ...]] = ("dce",)
    cleans_up: ClassVar[bool] = True

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace without repeated bound symbols. Their readers read the results of the first occurrence."""
        if any(bsym.mutates for bsym in trace.bound_symbols):
            return trace.having(trace.bound_symbols, made_by="share common expressions")
        tracked = tracked_by_autograd(trace)
        distinct = distinct_tensors(trace) | narrowed_tensors(trace, tracked)
        copies = distinct | differing_copies(trace, tracked)
        first: dict[Hashable, BoundSymbol] = {}
        names: dict[str, Proxy] = {}
        bsyms: list[BoundSymbol] = []
        for original in trace.bound_symbols:
            bsym = original.rename(names) if names else original
            if bsym.ordered:
                first.clear()
            fixed = bsym.keeps_position or any(proxy.name in distinct for proxy in bsym.defines)
            source = None if fixed or any(proxy.name in copies for proxy in bsym.defines) else copied_tensor(bsym)
            if source is not None:
                names[bsym.output.name] = source
                continue
            key = None if fixed else signature(bsym)
            earlier = first.setdefault(key, bsym) if key is not None else bsym
            if earlier is bsym:
                bsyms.append(bsym)
            else:
                names |= {old.name: new for old, new in zip(bsym.outputs, earlier.outputs, strict=True)}
        return trace.having(bsyms, made_by="share common expressions")


def distinct_tensors(trace: Trace) -> set[str]:
    """Return the names of tensors that must not be replaced by equal tensors.

    These are the returned tensors, the inputs of ordered calls without known operations (such as a hook or
    `retain_grad`), and all tensors that may share memory with one of them.
    """
    names = {proxy.name for proxy in trace.outputs}
    for bsym in reversed(trace.bound_symbols):
        is_observed = bsym.ordered and not bsym.operations and bsym.symbol.name not in CHECK_NAMES
        if is_observed or (may_return_view(bsym) and any(proxy.name in names for proxy in bsym.outputs)):
            names |= {proxy.name for proxy in bsym.inputs}
    return names


def narrowed_tensors(trace: Trace, tracked: frozenset[str]) -> set[str]:
    """Return the names of tracked tensors that have fewer significant bits than the tracked tensors they are made of.

    `tracked` has the tensors that autograd may track. Suppose that a program casts a tensor twice. PyTorch casts both
    gradients back before it adds them, so the sum has all bits. With one shared cast, the gradients would be added with
    the fewer bits of the cast. torch.autocast does exactly that for a float32 parameter, whose cast it caches, so casts
    of inputs that are leaves are shared.
    """
    distinct = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    rounded: set[str] = set()
    for bsym in trace.bound_symbols:
        tensors = [tensor for tensor in bsym.tensors if tensor.name in tracked]
        if not tensors or (bsym.symbol.target is AUTOCAST_CAST and bsym.args[0].name in distinct):
            continue
        operands = [proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and proxy.name in tracked]
        finest = min((spacing(operand.dtype) for operand in operands), default=math.inf)
        rounded |= {tensor.name for tensor in tensors if finest < spacing(tensor.dtype)}
    return rounded


def spacing(dtype: torch.dtype) -> float:
    """Return the distance of adjacent numbers of a dtype near one; one for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 1.0


def signature(bsym: BoundSymbol) -> Hashable:
    """Return a key that is equal for bound symbols that compute the same from the same tensors."""
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
