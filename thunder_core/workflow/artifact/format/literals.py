"""Values as text that can be read without running code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.library.objects import same_values


def empty_set() -> set[Any]:
    """Return an empty set. Other sets are written as `{...}`.

    This function takes no argument, because a text such as `set(range(10**12))` would fill the memory.
    """
    return set()


def frozen_set(value: object) -> frozenset[Any]:
    """Return a frozenset of a set's items.

    Raise ValueError for any other argument, such as a range, which may be arbitrarily long.
    """
    if type(value) is not set:
        raise ValueError("a frozenset literal needs a set")
    return frozenset(value)


CALLS: dict[str, Callable[..., Any]] = {
    "torch.device": torch.device,
    "float": float,
    "complex": complex,
    "slice": slice,
    "range": range,
    "frozenset": frozen_set,
    "set": empty_set,
}
# Types whose values are attributes of `torch`, such as `torch.float32`.
NAMED_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def write_literal(value: object) -> str | None:
    """Return the text from which `read_literal` reads an equal value; None if the value has no such text."""
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, frozenset):
        inner = write_literal(set(value))
        return None if inner is None else f"frozenset({inner})"
    scope = Scope()
    text = literal(value, scope)
    if scope.constants or scope.imports - {
        "torch"
    }:  # the text names an object or a module that `read_literal` does not know
        return None
    try:
        return text if same_values(read_literal(text), value) else None
    except ValueError:
        return None


def read_literal(text: str) -> Any:
    """Read a value from its text; raise ValueError for anything but literals, dtypes, devices and similar objects."""
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, RuntimeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.80} is not a literal") from error


def _value(node: ast.expr) -> Any:
    reader = READERS.get(type(node))
    if reader is None:
        raise ValueError(f"{ast.unparse(node)!r:.80} is not a literal")
    return reader(node)


def _key(node: ast.expr | None) -> Any:
    if node is None:
        raise ValueError("a dict literal cannot contain `**`")
    return _value(node)


def _call(node: ast.Call) -> Any:
    name = ast.unparse(node.func)
    if name not in CALLS or node.keywords:
        raise ValueError(f"{name!r:.80} cannot be called in a literal")
    return CALLS[name](*(_value(argument) for argument in node.args))


def _attribute(node: ast.Attribute) -> torch.dtype | torch.layout | torch.memory_format:
    value = getattr(torch, node.attr, None) if ast.unparse(node.value) == "torch" else None
    if not isinstance(value, NAMED_TYPES):
        raise ValueError(f"{ast.unparse(node)!r:.80} is not a literal")
    return value


def _negative_number(node: ast.UnaryOp) -> int | float | complex:
    operand = _value(node.operand)
    if not isinstance(node.op, ast.USub) or not isinstance(operand, int | float | complex):
        raise ValueError(f"{ast.unparse(node)!r:.80} is not a literal")
    return -operand


READERS: dict[type[ast.expr], Callable[[Any], Any]] = {
    ast.Constant: lambda node: node.value,
    ast.Tuple: lambda node: tuple(_value(item) for item in node.elts),
    ast.List: lambda node: [_value(item) for item in node.elts],
    ast.Set: lambda node: {_value(item) for item in node.elts},
    ast.Dict: lambda node: {_key(k): _value(v) for k, v in zip(node.keys, node.values, strict=True)},
    ast.Call: _call,
    ast.Attribute: _attribute,
    ast.UnaryOp: _negative_number,
}
