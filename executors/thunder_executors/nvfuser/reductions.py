"""Rules of reductions. Reductions of 16-bit dtypes are computed in float32, as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.nvfuser.definition import (
    SIXTEEN_BIT,
    Definition,
    Unsupported,
    arguments,
    call,
    cast,
    result_of,
    rule,
)
from thunder_executors.nvfuser.elementwise import INTEGRAL, in_dtype, operand


def dimensions(argument: Sequence[int] | int | None, proxy: TensorProxy) -> list[int]:
    """Return the dimensions of a reduction, counted from the front; all dimensions if none are given."""
    if not proxy.shape:
        raise Unsupported("a reduction of a scalar")
    dims = [argument] if isinstance(argument, int) else list(argument or range(len(proxy.shape)))
    return sorted(dim % len(proxy.shape) for dim in dims)


def reduce(name: str, x: str, dims: list[int], keep: bool, **options: object) -> str:
    """Return a reduction as an expression."""
    return call(name, x, dims=dims, **options, keepdim=keep)


def sum_of(definition: Definition, operation: BoundSymbol) -> tuple[str, int]:
    """Return the sum of an operation in its compute dtype, and the number of summands."""
    named = arguments(operation)
    proxy: TensorProxy = named["self"]
    dtype = torch.float32 if result_of(operation).dtype in SIXTEEN_BIT else result_of(operation).dtype
    x = proxy.name if proxy.dtype == dtype else definition.name_expression(cast(proxy.name, dtype))
    dims = dimensions(named.get("dim"), proxy)
    return reduce("sum", x, dims, named.get("keepdim", False)), math.prod(proxy.shape[dim] for dim in dims)


@rule("sum")
def total(definition: Definition, operation: BoundSymbol) -> str:
    """Return the sum."""
    return in_dtype(sum_of(definition, operation)[0], operation)


@rule("mean")
def mean(definition: Definition, operation: BoundSymbol) -> str:
    """Return the sum divided by the number of summands."""
    expression, count = sum_of(definition, operation)
    return in_dtype(call("truediv", expression, repr(float(count))), operation)


@rule("amax", "amin")
def extreme(definition: Definition, operation: BoundSymbol) -> str:
    """Return the largest or smallest element."""
    named = arguments(operation)
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__.removeprefix("a")
    if named["self"].dtype in INTEGRAL:
        raise Unsupported(f"a{name} of integers")
    x = definition.upcast(named["self"])
    return in_dtype(reduce(name, x, dimensions(named["dim"], named["self"]), named["keepdim"]), operation)


@rule("var")
def variance(definition: Definition, operation: BoundSymbol) -> str:
    """Return the variance, with the divisor `n - correction`."""
    named = arguments(operation)
    if "correction" not in named:
        raise Unsupported("var without a correction")
    correction = 1 if named["correction"] is None else named["correction"]
    if correction != int(correction):
        raise Unsupported("var with a correction that is not an integer")
    x, dims = definition.upcast(named["self"]), dimensions(named["dim"], named["self"])
    return in_dtype(reduce("var", x, dims, named["keepdim"], correction=int(correction)), operation)


def shift_by_maximum(definition: Definition, operation: BoundSymbol) -> tuple[str, str, Callable[[str], str]]:
    """For a softmax, return `x - max(x)`, the sum of its exponentials, and a function that broadcasts to x's shape."""
    proxy: TensorProxy = operation.args[0]
    if not proxy.shape:
        raise Unsupported("softmax of a scalar")
    dim = operation.args[1] % len(proxy.shape)
    shape = list(proxy.shape)

    def widen(x: str) -> str:
        return definition.name_expression(
            call("broadcast_in_dim", x, shape=shape, broadcast_dims=list(range(len(shape))))
        )

    x = definition.upcast(proxy)
    largest = widen(definition.name_expression(reduce("max", x, [dim], True)))
    shifted = definition.name_expression(call("sub", x, largest))
    return shifted, definition.name_expression(reduce("sum", call("exp", shifted), [dim], True)), widen


@rule("_softmax")
def softmax(definition: Definition, operation: BoundSymbol) -> str:
    """Return the exponentials of `x - max`, divided by their sum."""
    shifted, total, widen = shift_by_maximum(definition, operation)
    return in_dtype(call("truediv", call("exp", shifted), widen(total)), operation)


@rule("_log_softmax")
def log_softmax(definition: Definition, operation: BoundSymbol) -> str:
    """Return the logarithm of softmax: `x - max` minus the logarithm of the sum of its exponentials."""
    shifted, total, widen = shift_by_maximum(definition, operation)
    return in_dtype(call("sub", shifted, widen(definition.name_expression(call("log", total)))), operation)


@rule("native_layer_norm")
def layer_norm(definition: Definition, operation: BoundSymbol) -> tuple[str, ...]:
    """Return (x - mean) * rsqrt(var + eps) * weight + bias, the mean, and the rsqrt."""
    named = arguments(operation)
    proxy: TensorProxy = named["input"]
    dims = list(range(len(proxy.shape) - len(named["normalized_shape"]), len(proxy.shape)))
    x = definition.upcast(proxy)
    both = definition.name_expression(reduce("var_mean", x, dims, True, correction=0))
    variance, center = definition.name_expression(f"{both}[0]"), definition.name_expression(f"{both}[1]")
    factor = definition.name_expression(call("rsqrt", call("add", variance, repr(float(named["eps"])))))

    def widen(name: str) -> str:
        broadcast_dims = list(range(len(proxy.shape)))
        return definition.name_expression(
            call("broadcast_in_dim", name, shape=list(proxy.shape), broadcast_dims=broadcast_dims)
        )

    y = call("mul", call("sub", x, widen(center)), widen(factor))
    for name, factor_or_bias in (("mul", named["weight"]), ("add", named["bias"])):
        y = y if factor_or_bias is None else call(name, y, operand(definition, factor_or_bias, proxy.shape))
    results = (y, center, factor)
    dtypes = [output.dtype for output in operation.outputs if isinstance(output, TensorProxy)]
    return tuple(cast(result, dtype) for result, dtype in zip(results, dtypes, strict=True))
