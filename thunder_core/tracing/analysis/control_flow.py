"""Bound symbols with sub-traces, the functions that a higher-order operator is given, and passes over these."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, with_subtraces


def transformed(trace: Trace, transform: Callable[[Trace], Trace]) -> Trace:
    """Return the trace behind a transform, which is applied to its sub-traces first, and to theirs before.

    A `Transform` may do otherwise to sub-traces (`of_function`). Raises `OperationFailed` for one by which a function
    returns tensors of other shapes or dtypes, which the bound symbol that calls it does not.
    """
    return transform(_with_transformed_functions(trace, transform))


def _with_transformed_functions(trace: Trace, transform: Callable[[Trace], Trace]) -> Trace:
    """Return a trace behind a transform of its sub-traces alone."""
    if not any(bsym.functions for bsym in trace.bound_symbols):
        return trace
    of_function = getattr(transform, "of_function", transform)

    def changed(bsym: BoundSymbol) -> BoundSymbol:
        def change(function: Trace) -> Trace:
            return require_alike(bsym, function, of_function(_with_transformed_functions(function, transform)))

        return with_subtraces(bsym, change)

    return trace.having(map(changed, trace.bound_symbols), made_by=trace.made_by)


def require_alike(bsym: BoundSymbol, function: Trace, changed: Trace) -> Trace:
    """Return a function of a bound symbol behind a transform; `OperationFailed` for one that returns something else."""
    if list(map(_kind, function.output)) != list(map(_kind, changed.output)):
        raise OperationFailed(
            f"the transform {changed.made_by} changes the dtypes or shapes of the results of a function that is passed "
            f"to `{bsym.symbol.short_name}`",
            fix="leave out the transform, or write the branch or loop in Python",
            where=bsym.source,
        )
    return changed


def _kind(result: object) -> object:
    """The dtype and shape of a tensor that a function returns."""
    return (result.dtype, tuple(result.shape)) if isinstance(result, TensorProxy) else result


def has_gradients(bsym: BoundSymbol) -> bool:
    """Whether a tensor that a bound symbol reads or returns requires a gradient."""
    proxies = (*bsym.inputs, *bsym.outputs)
    return any(isinstance(proxy, TensorProxy) and proxy.requires_grad for proxy in proxies)
