"""Rules of elementwise operations: each writes an aten operation as an nvFuser operation."""

from __future__ import annotations

import math
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
INTEGRAL = frozenset({torch.int64, torch.int32, torch.bool})


def operand(definition: Definition, value: object, shape: tuple[int, ...]) -> str:
    """Return a tensor broadcast to the result's shape, or a number; an expression is returned unchanged."""
    if isinstance(value, str):
        return value
    if not isinstance(value, TensorProxy):
        return number(value)
    return value.name if value.shape == shape else definition.name_expression(broadcast(value, shape))


def broadcast(proxy: TensorProxy, shape: tuple[int, ...]) -> str:
    """Return a tensor broadcast to the shape, aligned at the last dimensions."""
    first = len(shape) - len(proxy.shape)
    return call("broadcast_in_dim", proxy.name, shape=list(shape), broadcast_dims=list(range(first, len(shape))))


def in_dtype(expression: str, operation: BoundSymbol) -> str:
    """Return the expression in the dtype of PyTorch's result, converted if nvFuser's dtype may differ."""
    result_dtype = result_of(operation).dtype
    input_dtypes = {proxy.dtype for proxy in operation.inputs if isinstance(proxy, TensorProxy)}
    return (
        expression
        if input_dtypes == {result_dtype} and result_dtype not in SIXTEEN_BIT
        else cast(expression, result_dtype)
    )


def elementwise(definition: Definition, operation: BoundSymbol, name: str, *values: object) -> str:
    """Return an elementwise operation on its operands."""
    shape = result_of(operation).shape
    if not any(isinstance(value, TensorProxy) for value in values):
        raise Unsupported(f"{name} without a tensor")
    return in_dtype(call(name, *(operand(definition, value, shape) for value in values)), operation)


@rule(*UNARY)
def unary(definition: Definition, operation: BoundSymbol) -> str:
    """Return an operation that nvFuser has under the same name."""
    target: Any = operation.symbol.target
    return elementwise(definition, operation, target.overloadpacket.__name__, operation.args[0])


@rule(*BINARY)
def binary(definition: Definition, operation: BoundSymbol) -> str:
    """Return an operation on two operands that nvFuser has under the same name."""
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__
    if name == "pow" and result_of(operation).dtype in INTEGRAL:
        raise Unsupported("pow of integers")
    return elementwise(definition, operation, BINARY[name], *operation.args[:2])


@rule("bitwise_not")
def invert(definition: Definition, operation: BoundSymbol) -> str:
    """Return the logical negation, or the bitwise negation of integers."""
    name = "logical_not" if result_of(operation).dtype == torch.bool else "bitwise_not"
    return elementwise(definition, operation, name, operation.args[0])


@rule("add", "sub", "rsub")
def sums(definition: Definition, operation: BoundSymbol) -> str:
    """Return `self + other` or `self - other`, or `other - self` for `rsub`; `alpha` must be 1."""
    named = arguments(operation)
    target: Any = operation.symbol.target
    name, first, second = target.overloadpacket.__name__, named["self"], named["other"]
    if named.get("alpha", 1) != 1:
        raise Unsupported(f"{name} with alpha")
    if result_of(operation).dtype == torch.bool:
        raise Unsupported(f"{name} of booleans")
    pair = (second, first) if name == "rsub" else (first, second)
    return elementwise(definition, operation, name.removeprefix("r"), *pair)


@rule("div")
def quotient(definition: Definition, operation: BoundSymbol) -> str:
    """Return the true division."""
    named = arguments(operation)
    if named.get("rounding_mode"):
        raise Unsupported("div with rounding")
    return elementwise(definition, operation, "truediv", named["self"], named["other"])


@rule("where")
def where(definition: Definition, operation: BoundSymbol) -> str:
    """Return a selection between two operands by a condition."""
    if len(operation.args) != 3:
        raise Unsupported("where with only a condition")
    return elementwise(definition, operation, "where", *operation.args)


@rule("masked_fill")
def masked_fill(definition: Definition, operation: BoundSymbol) -> str:
    """Return the operand with a value where the mask is set."""
    named = arguments(operation)
    return elementwise(definition, operation, "where", named["mask"], named["value"], named["self"])


@rule("clamp", "clamp_min", "clamp_max")
def clamp(definition: Definition, operation: BoundSymbol) -> str:
    """Return the operand clamped to bounds, either of which may be missing."""
    named = arguments(operation)
    expression = operation.args[0]
    for name, bound in (("maximum", named.get("min")), ("minimum", named.get("max"))):
        if bound is not None:
            operands = (operand(definition, value, result_of(operation).shape) for value in (expression, bound))
            expression = definition.name_expression(call(name, *operands))
    return in_dtype(expression, operation)


@rule("gelu")
def gelu(definition: Definition, operation: BoundSymbol) -> str:
    """Return the formula `x * Phi(x)`, or its tanh approximation (https://arxiv.org/abs/1606.08415)."""
    named = arguments(operation)
    x = definition.upcast(named["self"])
    if named["approximate"] == "tanh":
        cube = definition.name_expression(call("mul", call("mul", x, x), x))
        inner = call("mul", call("add", x, call("mul", cube, "0.044715")), repr(math.sqrt(2 / math.pi)))
        term = call("tanh", inner)
    else:
        term = call("erf", call("mul", x, repr(math.sqrt(0.5))))
    product = call("mul", call("mul", x, "0.5"), call("add", term, "1.0"))
    return in_dtype(product, operation)


@rule("_to_copy")
def convert(definition: Definition, operation: BoundSymbol) -> str:
    """Return a conversion to another dtype on the same device."""
    if arguments(operation)["self"].dtype == result_of(operation).dtype:
        raise Unsupported("a copy in the same dtype")
    return cast(operation.inputs[0].name, result_of(operation).dtype)
