"""Conditions on the symbols of a region, as Python expressions that the sizes of each call must satisfy."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_core.tracing.ir.proxy import NumberProxy
from thunder_core.tracing.ir.sizes import hint_of


def largest(*sizes: Any) -> Any:
    """Return the largest of the sizes."""
    return functools.reduce(torch.sym_max, sizes)


def smallest(*sizes: Any) -> Any:
    """Return the smallest of the sizes."""
    return functools.reduce(torch.sym_min, sizes)


# The functions and operators in expressions of sizes; the functions are PyTorch's for symbolic integers.
FUNCTIONS: Mapping[str, Any] = {
    "max": largest,
    "min": smallest,
    "int": int,
    "float": torch.sym_float,
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
}
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
SizesByName = Mapping[str, Any]
NO_SIZES: SizesByName = {}


def named_sizes(symbols: Sequence[NumberProxy]) -> dict[str, Any]:
    """Return the symbols of a region by their names in texts: `s0`, `s1`, ..."""
    return {f"s{index}": proxy.value for index, proxy in enumerate(symbols)}


def size_of(text: str, sizes: SizesByName) -> Any:
    """Return the value of an expression of sizes: `size_of("s0 * 2", {"s0": 3})` is 6.

    Raises `NameError` for a name that is not in `sizes`, and `ValueError` for anything but arithmetic and comparisons.
    """
    return _value(ast.parse(text, mode="eval").body, sizes)


def _value(node: ast.expr, sizes: SizesByName) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in sizes:
                raise NameError(f"{name} is not a size")
            return sizes[name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, sizes) for item in items)
        case ast.UnaryOp(op=symbol, operand=operand):
            return _operator(symbol)(_value(operand, sizes))
        case ast.BinOp(left=left, op=symbol, right=right):
            return _operator(symbol)(_value(left, sizes), _value(right, sizes))
        case ast.BoolOp(op=symbol, values=values):
            return (all if isinstance(symbol, ast.And) else any)(_value(value, sizes) for value in values)
        case ast.Compare(left=left, ops=symbols, comparators=comparators):
            values = [_value(value, sizes) for value in (left, *comparators)]
            pairs = list(zip(symbols, values, values[1:], strict=False))
            if len(pairs) == 1:
                return _operator(symbols[0])(*values)
            return all(_operator(symbol)(left, right) for symbol, left, right in pairs)
        case ast.Call(func=function, args=arguments, keywords=[]) if ast.unparse(function) in FUNCTIONS:
            return FUNCTIONS[ast.unparse(function)](*(_value(argument, sizes) for argument in arguments))
    raise ValueError(f"`{ast.unparse(node)}` is not an expression of sizes")


def _operator(symbol: ast.AST) -> Callable[..., Any]:
    if type(symbol) not in OPERATORS:
        raise ValueError(f"{type(symbol).__name__} is not an operator for sizes")
    return OPERATORS[type(symbol)]


def find_unmet_at_hints(conditions: Sequence[str], symbols: Sequence[NumberProxy]) -> str:
    """Return the first condition that fails for the sizes of the traced call; empty if all conditions hold."""
    sizes = named_sizes(symbols)
    values = {name: hint_of(size) for name, size in sizes.items()}
    elements = (f"{name} >= 1" for name, size in sizes.items() if size.node.expr.is_positive)
    return next((text for text in (*elements, *conditions) if not size_of(text, values)), "")


def apply_conditions(conditions: Sequence[str], symbols: Sequence[NumberProxy]) -> str:
    """Return the first condition that fails for the sizes of the traced call, or make all conditions constraints.

    If all conditions hold, the result is empty, and the program has the conditions as constraints. The program is then
    also constrained to sizes above zero: some operations refuse tensors without elements, so compilers assume elements.
    """
    failing = find_unmet_at_hints(conditions, symbols)
    if not failing:
        sizes = named_sizes(symbols)
        for size in sizes.values():
            size.node.shape_env.require_nonempty(size)
        for text in conditions:
            bool(size_of(text, sizes))
    return failing
