"""The table from names of aten operations to what writes them in nvFuser's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_executors.nvfuser.definition import (
    SHORT,
    Definition,
    Unsupported,
    arguments,
    call,
    cast,
    data_type,
    number,
    result_of,
    rule,
)

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "neg",
    "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = {
    "mul": "mul", "maximum": "maximum", "minimum": "minimum", "pow": "pow", "eq": "eq", "ne": "ne", "lt": "lt",
    "le": "le", "gt": "gt", "ge": "ge", "logical_and": "logical_and", "logical_or": "logical_or",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
}  # fmt: skip
WHOLE = frozenset({torch.int64, torch.int32, torch.bool})


# Elementwise.


def operand(definition: Definition, value: object, shape: tuple[int, ...]) -> str:
    """A tensor, broadcast to the shape of the result, or a number; what is written already stays as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, TensorProxy):
        return number(value)
    return value.name if value.shape == shape else definition.named(broadcast(value, shape))


def broadcast(proxy: TensorProxy, shape: tuple[int, ...]) -> str:
    """A tensor as wide as the shape, its dimensions being the last ones."""
    first = len(shape) - len(proxy.shape)
    return call("broadcast_in_dim", proxy.name, shape=list(shape), broadcast_dims=list(range(first, len(shape))))


def in_dtype(expression: str, operation: BoundSymbol) -> str:
    """The expression in the dtype of PyTorch's result, wherever nvFuser's own might be another one."""
    wanted = result_of(operation).dtype
    own = {proxy.dtype for proxy in operation.inputs if isinstance(proxy, TensorProxy)}
    return expression if own == {wanted} and wanted not in SHORT else cast(expression, wanted)


def elementwise(definition: Definition, operation: BoundSymbol, name: str, *values: object) -> str:
    """An operation on each element of its operands."""
    shape = result_of(operation).shape
    if not any(isinstance(value, TensorProxy) for value in values):
        raise Unsupported(f"{name} of numbers alone")
    return in_dtype(call(name, *(operand(definition, value, shape) for value in values)), operation)


@rule(*UNARY)
def unary(definition: Definition, operation: BoundSymbol) -> str:
    """An operation that nvFuser has under the same name."""
    target: Any = operation.symbol.target
    return elementwise(definition, operation, target.overloadpacket.__name__, operation.args[0])


@rule(*BINARY)
def binary(definition: Definition, operation: BoundSymbol) -> str:
    """An operation on two operands that nvFuser has under the same name."""
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__
    if name == "pow" and result_of(operation).dtype in WHOLE:
        raise Unsupported("pow of integers")
    return elementwise(definition, operation, BINARY[name], *operation.args[:2])


@rule("bitwise_not")
def inverted(definition: Definition, operation: BoundSymbol) -> str:
    """The negation of truth values."""
    name = "logical_not" if result_of(operation).dtype == torch.bool else "bitwise_not"
    return elementwise(definition, operation, name, operation.args[0])


@rule("add", "sub", "rsub")
def sums(definition: Definition, operation: BoundSymbol) -> str:
    """`self + alpha * other`, `self - alpha * other`, and the other way round."""
    given = arguments(operation)
    target: Any = operation.symbol.target
    name, first, second = target.overloadpacket.__name__, given["self"], given["other"]
    if given.get("alpha", 1) != 1:
        raise Unsupported(f"{name} with a factor")
    if result_of(operation).dtype == torch.bool:
        raise Unsupported(f"{name} of truth values")
    pair = (second, first) if name == "rsub" else (first, second)
    return elementwise(definition, operation, name.removeprefix("r"), *pair)


@rule("div")
def quotient(definition: Definition, operation: BoundSymbol) -> str:
    """True division."""
    given = arguments(operation)
    if given.get("rounding_mode"):
        raise Unsupported("div with rounding")
    return elementwise(definition, operation, "truediv", given["self"], given["other"])


@rule("where")
def chosen(definition: Definition, operation: BoundSymbol) -> str:
    """One of two, by a condition."""
    if len(operation.args) != 3:
        raise Unsupported("where as nonzero")
    return elementwise(definition, operation, "where", *operation.args)


@rule("masked_fill")
def filled(definition: Definition, operation: BoundSymbol) -> str:
    """A value where a mask says so."""
    given = arguments(operation)
    return elementwise(definition, operation, "where", given["mask"], given["value"], given["self"])


@rule("clamp", "clamp_min", "clamp_max")
def clamped(definition: Definition, operation: BoundSymbol) -> str:
    """Between bounds, either of which may be missing."""
    given = arguments(operation)
    expression = operation.args[0]
    for name, bound in (("maximum", given.get("min")), ("minimum", given.get("max"))):
        if bound is not None:
            operands = (operand(definition, one, result_of(operation).shape) for one in (expression, bound))
            expression = definition.named(call(name, *operands))
    return in_dtype(expression, operation)


@rule("gelu")
def gelu(definition: Definition, operation: BoundSymbol) -> str:
    """The formula `x * Phi(x)`, or its approximation by tanh (https://arxiv.org/abs/1606.08415)."""
    given = arguments(operation)
    x = definition.wide(given["self"])
    if given["approximate"] == "tanh":
        cube = definition.named(call("mul", call("mul", x, x), x))
        inner = call("mul", call("add", x, call("mul", cube, "0.044715")), repr(math.sqrt(2 / math.pi)))
        part = call("tanh", inner)
    else:
        part = call("erf", call("mul", x, repr(math.sqrt(0.5))))
    whole = call("mul", call("mul", x, "0.5"), call("add", part, "1.0"))
    return in_dtype(whole, operation)


@rule("_to_copy")
def converted(definition: Definition, operation: BoundSymbol) -> str:
    """Another dtype on the same device."""
    if arguments(operation)["self"].dtype == result_of(operation).dtype:
        raise Unsupported("a copy in the same dtype")
    return cast(operation.inputs[0].name, result_of(operation).dtype)


# Reductions, in float32 where the tensor is shorter, as PyTorch does them.


def dimensions(given: Sequence[int] | int | None, proxy: TensorProxy) -> list[int]:
    """The dimensions that are meant, counted from the front; none named are all."""
    named = [given] if isinstance(given, int) else list(given or range(len(proxy.shape)))
    if not named:
        raise Unsupported("a reduction of a scalar")
    return sorted(dim % len(proxy.shape) for dim in named)


def reduced(name: str, x: str, dims: list[int], keep: bool, **options: object) -> str:
    """A reduction of nvFuser's."""
    return call(name, x, dims=dims, **options, keepdim=keep)


def summed(definition: Definition, operation: BoundSymbol) -> tuple[str, int]:
    """The sum that an operation wants in the dtype of the arithmetic, and of how many numbers."""
    given = arguments(operation)
    proxy: TensorProxy = given["self"]
    wanted = torch.float32 if result_of(operation).dtype in SHORT else result_of(operation).dtype
    x = proxy.name if proxy.dtype == wanted else definition.named(cast(proxy.name, wanted))
    dims = dimensions(given.get("dim"), proxy)
    return reduced("sum", x, dims, given.get("keepdim", False)), math.prod(proxy.shape[dim] for dim in dims)


@rule("sum")
def total(definition: Definition, operation: BoundSymbol) -> str:
    """The sum."""
    return in_dtype(summed(definition, operation)[0], operation)


@rule("mean")
def mean(definition: Definition, operation: BoundSymbol) -> str:
    """The sum, divided by how many there are."""
    expression, count = summed(definition, operation)
    return in_dtype(call("truediv", expression, repr(float(count))), operation)


@rule("amax", "amin")
def extreme(definition: Definition, operation: BoundSymbol) -> str:
    """The largest or smallest one."""
    given = arguments(operation)
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__.removeprefix("a")
    if given["self"].dtype in WHOLE:
        raise Unsupported(f"a{name} of integers")
    x = definition.wide(given["self"])
    return in_dtype(reduced(name, x, dimensions(given["dim"], given["self"]), given["keepdim"]), operation)


@rule("var")
def variance(definition: Definition, operation: BoundSymbol) -> str:
    """The variance, its divisor less by the correction."""
    given = arguments(operation)
    if "correction" not in given:
        raise Unsupported("var without a correction")
    correction = 1 if given["correction"] is None else given["correction"]
    x, dims = definition.wide(given["self"]), dimensions(given["dim"], given["self"])
    return in_dtype(reduced("var", x, dims, given["keepdim"], correction=int(correction)), operation)


def shifted(definition: Definition, operation: BoundSymbol) -> tuple[str, str, Callable[[str], str]]:
    """For a softmax: `x - max(x)`, the sum of its exponentials as wide as it is, and what makes others so wide."""
    proxy: TensorProxy = operation.args[0]
    if not proxy.shape:
        raise Unsupported("softmax of a scalar")
    dim = operation.args[1] % len(proxy.shape)
    shape = list(proxy.shape)

    def widened(x: str) -> str:
        return definition.named(call("broadcast_in_dim", x, shape=shape, broadcast_dims=list(range(len(shape)))))

    x = definition.wide(proxy)
    largest = widened(definition.named(reduced("max", x, [dim], True)))
    less = definition.named(call("sub", x, largest))
    return less, definition.named(reduced("sum", call("exp", less), [dim], True)), widened


@rule("_softmax")
def softmax(definition: Definition, operation: BoundSymbol) -> str:
    """The exponentials of `x - max`, divided by their sum."""
    less, total, widened = shifted(definition, operation)
    return in_dtype(call("truediv", call("exp", less), widened(total)), operation)


@rule("_log_softmax")
def log_softmax(definition: Definition, operation: BoundSymbol) -> str:
    """The logarithm of softmax: `x - max`, less the logarithm of the sum of its exponentials."""
    less, total, widened = shifted(definition, operation)
    return in_dtype(call("sub", less, widened(definition.named(call("log", total)))), operation)


@rule("native_layer_norm")
def layer_norm(definition: Definition, operation: BoundSymbol) -> tuple[str, ...]:
    """(x - mean) * rsqrt(var + eps) * weight + bias, the mean, and the rsqrt."""
    given = arguments(operation)
    proxy: TensorProxy = given["input"]
    dims = list(range(len(proxy.shape) - len(given["normalized_shape"]), len(proxy.shape)))
    x = definition.wide(proxy)
    both = definition.named(reduced("var_mean", x, dims, True, correction=0))
    variance, center = definition.named(f"{both}[0]"), definition.named(f"{both}[1]")
    factor = definition.named(call("rsqrt", call("add", variance, repr(float(given["eps"])))))

    def widened(name: str) -> str:
        places = list(range(len(proxy.shape)))
        return definition.named(call("broadcast_in_dim", name, shape=list(proxy.shape), broadcast_dims=places))

    y = call("mul", call("sub", x, widened(center)), widened(factor))
    for name, other in (("mul", given["weight"]), ("add", given["bias"])):
        y = y if other is None else call(name, y, operand(definition, other, proxy.shape))
    results = (y, center, factor)
    dtypes = [one.dtype for one in operation.outputs if isinstance(one, TensorProxy)]
    return tuple(cast(one, dtype) for one, dtype in zip(results, dtypes, strict=True))


# New tensors.


@rule("full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "scalar_tensor", "new_zeros", "new_ones")
def constant(definition: Definition, operation: BoundSymbol) -> str:
    """One number everywhere."""
    given = arguments(operation)
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__
    value = given.get("fill_value", given.get("s", 1 if "ones" in name else 0))
    proxy = result_of(operation)
    return call("full", shape=list(proxy.shape), fill_value=number(value), dtype=data_type(proxy.dtype))


@rule("cat")
def joined(definition: Definition, operation: BoundSymbol) -> str:
    """Tensors one behind the other."""
    given, proxy = arguments(operation), result_of(operation)
    parts: Sequence[TensorProxy] = given["tensors"]
    if len(parts) < 2 or any(one.dtype != proxy.dtype or len(one.shape) != len(proxy.shape) for one in parts):
        raise Unsupported("cat of unequal tensors")
    names = f"[{', '.join(one.name for one in parts)}]"
    return call("cat", names, dim=given["dim"] % len(proxy.shape))


# Movements: the same numbers in another shape or place.


@rule("clone", "contiguous", "alias", "detach", "lift_fresh", moves=True)
def same(definition: Definition, operation: BoundSymbol) -> str:
    """The operand itself."""
    return call("set", operation.inputs[0].name)


@rule("view", "_unsafe_view", "reshape", moves=True)
def reshaped(definition: Definition, operation: BoundSymbol) -> str:
    """The numbers of a tensor, in order, in another shape."""
    if len(operation.args) != 2 or not isinstance(operation.args[1], Sequence):
        raise Unsupported("a view in another dtype")
    return call("reshape", operation.inputs[0].name, new_shape=list(result_of(operation).shape))


@rule("permute", "transpose", "t", moves=True)
def permuted(definition: Definition, operation: BoundSymbol) -> str:
    """The dimensions in another order."""
    given = arguments(operation)
    rank = len(given["self"].shape)
    order = list(range(rank))
    if "dims" in given:
        order = [dim % rank for dim in given["dims"]]
    elif rank > 1:
        first, second = (given.get("dim0", 0) % rank, given.get("dim1", 1) % rank)
        order[first], order[second] = second, first
    return call("permute", given["self"].name, dims=order)


@rule("expand", moves=True)
def expanded(definition: Definition, operation: BoundSymbol) -> str:
    """Dimensions of one element made longer, and new ones in front."""
    return broadcast(operation.args[0], result_of(operation).shape)


@rule("unsqueeze", moves=True)
def unsqueezed(definition: Definition, operation: BoundSymbol) -> str:
    """A new dimension of one element."""
    given, shape = arguments(operation), result_of(operation).shape
    new = given["dim"] % len(shape)
    places = [place for place in range(len(shape)) if place != new]
    return call("broadcast_in_dim", given["self"].name, shape=list(shape), broadcast_dims=places)


@rule("squeeze", moves=True)
def squeezed(definition: Definition, operation: BoundSymbol) -> str:
    """Without dimensions of one element."""
    given = arguments(operation)
    proxy: TensorProxy = given["self"]
    dims = [dim for dim in dimensions(given.get("dim"), proxy) if proxy.shape[dim] == 1]
    return call("squeeze", proxy.name, dims=dims) if dims else call("set", proxy.name)


@rule("slice", moves=True)
def sliced(definition: Definition, operation: BoundSymbol) -> str:
    """A part of a dimension."""
    given = arguments(operation)
    if given["step"] != 1:
        raise Unsupported("slice with steps")
    proxy: TensorProxy = given["self"]
    dim = given["dim"] % len(proxy.shape)
    length = result_of(operation).shape[dim]
    start = given["start"] or 0
    first = min(max(start + (proxy.shape[dim] if start < 0 else 0), 0), proxy.shape[dim])
    return part(proxy.name, proxy, dim, first, length)


def part(name: str, proxy: TensorProxy, dim: int, first: int, length: int) -> str:
    """A part of a tensor: so many along a dimension, from a place on."""
    starts, ends = [0] * len(proxy.shape), list(proxy.shape)
    starts[dim], ends[dim] = first, first + length
    return call("slice", name, start_indices=starts, end_indices=ends)


@rule("select", moves=True)
def selected(definition: Definition, operation: BoundSymbol) -> str:
    """One of a dimension, which is gone then."""
    given = arguments(operation)
    proxy: TensorProxy = given["self"]
    dim = given["dim"] % len(proxy.shape)
    return call("squeeze", part(proxy.name, proxy, dim, given["index"] % proxy.shape[dim], 1), dims=[dim])


@rule("split", "split_with_sizes", moves=True)
def divided(definition: Definition, operation: BoundSymbol) -> tuple[str, ...]:
    """Parts of a dimension, one behind the other."""
    given = arguments(operation)
    proxy: TensorProxy = given["self"]
    dim = given["dim"] % len(proxy.shape)
    lengths = [one.shape[dim] for one in operation.outputs if isinstance(one, TensorProxy)]
    return tuple(part(proxy.name, proxy, dim, sum(lengths[:place]), size) for place, size in enumerate(lengths))
