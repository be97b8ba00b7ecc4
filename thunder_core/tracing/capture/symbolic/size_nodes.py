"""Symbolic integers and conditions of a recording, which compute each result once.

PyTorch's meta functions compute the same few sizes, strides and conditions for each call of an operation: 18,500
results for a Llama of 8 layers, but only 500 different ones. PyTorch computes each of them again, with SymPy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sympy
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode

OF_TWO = ("add", "sub", "mul", "mod", "int_floordiv", "sym_min", "sym_max", "eq", "ne", "gt", "lt", "ge", "le")
CONDITIONS = ("and_", "or_")
Kind = TypeVar("Kind", bound=type)
Operation = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Computed:
    """The results of one recording: those of operations by operation and operands, and constants by value."""

    results: dict[Hashable, Any] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)

    def clear(self) -> None:
        """Drop all results."""
        self.results.clear()
        self.constants.clear()


def computed_once(name: str, operand: type) -> Operation:
    """Return an operation of PyTorch's nodes that computes the result for equal operands of this type once."""
    compute: Operation = getattr(SymNode, name)

    def operation(node: Any, other: Any) -> Any:
        if node.pytype is not operand or other.pytype is not operand or get_proxy_mode() is not None:
            return compute(node, other)
        key, results = (name, node.expr, other.expr), node.shape_env.computed.results
        result = results.get(key)
        if result is None:
            result = results[key] = remembering(compute(node, other))
        return result

    operation.__name__, operation.__doc__ = name, compute.__doc__
    return operation


def with_operations(kind: Kind) -> Kind:
    """Add the operations that compute each result once to a class of nodes."""
    for names, operand in ((OF_TWO, int), (CONDITIONS, bool)):
        for name in names:
            setattr(kind, name, computed_once(name, operand))
    return kind


@with_operations
class SizeNode(SymNode):
    """A symbolic integer, or a condition on integers, whose operations compute each result once."""

    shape_env: Any  # an environment with `computed` results and a `version` of its replacements
    _version: int = -1

    @property
    def expr(self) -> sympy.Basic:
        """The expression, with the symbols that are known to equal others or constants replaced."""
        return self._present if self._version == self.shape_env.version else self._update()

    def _update(self) -> sympy.Basic:
        """Return the expression for the present replacements."""
        self._present: sympy.Basic = super().expr
        self._is_number = isinstance(self._present, int) or bool(self._present.is_number)
        self._version = self.shape_env.version
        return self._present

    def maybe_as_int(self) -> int | None:
        """Return the value of a constant integer, and None for other numbers."""
        expression = self.expr
        return int(expression) if self._is_number else None

    def with_shape_env(self, shape_env: Any) -> SymNode:
        """Return a node with this expression in another environment."""
        node = super().with_shape_env(shape_env)
        return remembering(node) if hasattr(shape_env, "computed") else node

    def wrap_int(self, num: int) -> SymNode:
        """Return the node of a constant, made at its first use."""
        if type(num) is not int:
            return super().wrap_int(num)  # raises an error
        constants = self.shape_env.computed.constants
        constant: SymNode | None = constants.get(num)
        if constant is None:
            constant = constants[num] = remembering(super().wrap_int(num))
        return constant


def remembering(node: Any) -> Any:
    """Return a new node of PyTorch, changed to a `SizeNode`; return other nodes unchanged."""
    if type(node) is SymNode:
        node.__class__ = SizeNode
    return node


def with_remembering_node(size: Any) -> Any:
    """Return a new symbolic integer whose operations compute each result once; return other values unchanged."""
    if isinstance(size, torch.SymInt):
        remembering(size.node)
    return size
