"""Values as text that can be read back without running anything."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.ir.literal import Scope, literal


def empty_set() -> set[Any]:
    """The one set that is written as a call: a set of any argument could have any number of items."""
    return set()


def frozen_set(value: Any) -> frozenset[Any]:
    """A frozen set of the items of another set; ValueError for a range, which could have any number."""
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
NAMED = (torch.dtype, torch.layout, torch.memory_format)


def write_literal(value: Any) -> str | None:
    """The text of a value that `read_literal` gives back; None for a value that is more than its text."""
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, frozenset):
        inner = write_literal(set(value))
        return None if inner is None else f"frozenset({inner})"
    scope = Scope()
    text = literal(value, scope)
    if scope.constants or scope.imports - {"torch"}:
        return None
    try:
        return text if read_literal(text) == value and type(read_literal(text)) is type(value) else None
    except ValueError:
        return None


def read_literal(text: str) -> Any:
    """The value that a text stands for; ValueError for anything but literals, dtypes, devices and the like."""
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


def _attribute(node: ast.Attribute) -> Any:
    found = getattr(torch, node.attr, None) if ast.unparse(node.value) == "torch" else None
    if not isinstance(found, NAMED):
        raise ValueError(f"{ast.unparse(node)!r:.80} is not a literal")
    return found


def _negative(node: ast.UnaryOp) -> Any:
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
    ast.UnaryOp: _negative,
}
