"""Bound symbols with sub-traces, the functions that a higher-order operator is given, and passes over these."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.errors import OperationFailed
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace, with_subtraces


def transformed(trace: Trace, transform: Callable[[Trace], Trace]) -> Trace:
    """Return the trace behind a transform, which is applied to its sub-traces first, and to theirs before.

    Raises `OperationFailed` for a transform by which a function returns tensors of other shapes or dtypes, which the
    bound symbol that calls it does not.
    """
    if any(bsym.functions for bsym in trace.bound_symbols):
        bsyms = [_with_transformed_functions(bsym, transform) for bsym in trace.bound_symbols]
        trace = trace.having(bsyms, made_by=trace.made_by)
    return transform(trace)


def _with_transformed_functions(bsym: BoundSymbol, transform: Callable[[Trace], Trace]) -> BoundSymbol:
    def change(function: Trace) -> Trace:
        changed = transformed(function, transform)
        if list(map(_kind, function.output)) != list(map(_kind, changed.output)):
            raise OperationFailed(
                f"{changed.made_by} changes the dtypes or shapes of what a function given to "
                f"`{bsym.symbol.short_name}` returns",
                fix="leave it out, or write the branch or loop in Python",
                where=bsym.source,
            )
        return changed

    return with_subtraces(bsym, change)


def _kind(result: object) -> object:
    """The dtype and shape of a tensor that a function returns."""
    return (result.dtype, tuple(result.shape)) if isinstance(result, TensorProxy) else result


def has_gradients(bsym: BoundSymbol) -> bool:
    """Whether a tensor that a bound symbol reads or returns requires a gradient."""
    proxies = (*bsym.inputs, *bsym.outputs)
    return any(isinstance(proxy, TensorProxy) and proxy.requires_grad for proxy in proxies)
