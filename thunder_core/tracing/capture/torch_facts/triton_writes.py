"""The tensors that a Triton kernel may write to, determined from its source.

A pointer is only read if the pointer, and each name that is computed from it, is only used in loads and in such
computations. Every other use may be a write.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch

LOAD, POINTER = "load", "pointer"
METADATA = ("dtype", "type")  # attributes of a pointer that are not pointers
ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Subscript)
PARTS_OF_ARITHMETIC = (ast.operator, ast.unaryop, ast.expr_context)


class Role(IntEnum):
    """The use that an expression makes of a name: none, a computation of another value, or any other use."""

    UNUSED, COMPUTED, ESCAPES = range(3)


def written_positions(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the positions of the tensors that a kernel may write to, among all its tensors."""
    names = [*kernel.arg_names[: len(args)], *kwargs]
    values = (*args, *kwargs.values())
    tensors = [name for name, value in zip(names, values, strict=True) if isinstance(value, torch.Tensor)]
    read = only_read(kernel)
    return tuple(index for index, name in enumerate(tensors) if name not in read)


def only_read(kernel: Any) -> frozenset[str]:
    """Return the parameters that a kernel never writes to; empty if its source is not available."""
    function = kernel
    while not inspect.isfunction(function):
        function = function.fn
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    definition = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    parameters = [argument.arg for argument in (*definition.args.args, *definition.args.kwonlyargs)]
    return frozenset(name for name in parameters if not _is_used_elsewhere(definition, name))


def _is_used_elsewhere(definition: ast.FunctionDef, name: str) -> bool:
    """Whether a name, or a name computed from it, is used anywhere except in loads and such computations."""
    computed, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        for target in (target for statement in definition.body for target in _names_computed_from(statement, current)):
            if target is None:
                return True
            if target not in computed:
                computed.add(target)
                waiting.append(target)
    return False


def _names_computed_from(statement: ast.stmt, name: str) -> Iterator[str | None]:
    """Yield the names that a statement, and nested statements, compute from a name; None for each other use."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        role = _use_of_name(statement.value, name)
        if role == Role.COMPUTED:
            yield from (target.id if isinstance(target, ast.Name) else None for target in targets)
            return
        used = [role, *(_use_of_name(target, name) for target in targets if not isinstance(target, ast.Name))]
        yield from [None] if max(used) else []
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield from _names_computed_from(child, name)
        elif _use_of_name(child, name):
            yield None


def _use_of_name(node: ast.AST, name: str) -> Role:
    """Return the use that an expression makes of a name."""
    if isinstance(node, ast.Name):
        return Role.COMPUTED if node.id == name else Role.UNUSED
    if isinstance(node, ast.Attribute) and node.attr in METADATA:
        return Role.UNUSED
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, PARTS_OF_ARITHMETIC)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == LOAD:
        pointers = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == POINTER)]
        if any(_use_of_name(pointer, name) == Role.ESCAPES for pointer in pointers):
            return Role.ESCAPES
        parts = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg != POINTER)]
    role = max((_use_of_name(part, name) for part in parts), default=Role.UNUSED)
    return role if isinstance(node, ARITHMETIC) or role == Role.UNUSED else Role.ESCAPES
