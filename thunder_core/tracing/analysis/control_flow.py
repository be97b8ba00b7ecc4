"""Bound symbols with sub-traces, which are the functions passed to a higher-order operator such as `torch.cond`."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, with_subtraces


def transform_nested(trace: Trace, transform: Callable[[Trace], Trace]) -> Trace:
    """Apply a transform to a trace, after its sub-traces at all depths were transformed.

    A `Transform` may treat sub-traces differently (`of_function`). Raises `OperationFailed` if the transformed function
    returns tensors of other shapes or dtypes, because the bound symbol that calls the function does not change.
    """
    return transform(_with_transformed_functions(trace, transform))


def _with_transformed_functions(trace: Trace, transform: Callable[[Trace], Trace]) -> Trace:
    """Return a trace with only its sub-traces transformed."""
    if not any(bsym.functions for bsym in trace.bound_symbols):
        return trace
    of_function = getattr(transform, "of_function", transform)

    def transform_functions(bsym: BoundSymbol) -> BoundSymbol:
        def change(function: Trace) -> Trace:
            return require_alike(bsym, function, of_function(_with_transformed_functions(function, transform)))

        return with_subtraces(bsym, change)

    return trace.having(map(transform_functions, trace.bound_symbols), made_by=trace.made_by)


def require_alike(bsym: BoundSymbol, function: Trace, changed: Trace) -> Trace:
    """Return the transformed function; raise `OperationFailed` if its results have other shapes or dtypes."""
    if list(map(_dtype_and_shape, function.output)) != list(map(_dtype_and_shape, changed.output)):
        raise OperationFailed(
            f"the transform {changed.made_by} changes the dtypes or shapes of the results of a function that is passed "
            f"to `{bsym.symbol.short_name}`",
            fix="leave out the transform, or write the branch or loop in Python",
            where=bsym.source,
        )
    return changed


def _dtype_and_shape(result: object) -> object:
    """Return the dtype and shape of a tensor result; other results are returned unchanged."""
    return (result.dtype, tuple(result.shape)) if isinstance(result, TensorProxy) else result


def has_gradients(bsym: BoundSymbol) -> bool:
    """Whether a tensor that a bound symbol reads or returns requires a gradient."""
    proxies = (*bsym.inputs, *bsym.outputs)
    return any(isinstance(proxy, TensorProxy) and proxy.requires_grad for proxy in proxies)
