"""Unpacking: whether the prologue hands the computation what the origins of its inputs name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.inside import Fault

STANDS_FOR_ANOTHER = "`{name}` is not {origin}"


def wrongly_unpacked(
    computation: Trace, inputs: tuple[Any, ...], roots: Mapping[str, object], prologue: Trace
) -> Iterator[Fault]:
    """A fault for each input of the computation that is another object than its origin names.

    `roots` are the objects that origins begin with: `module`, `args` and `kwargs`.
    """
    for place, (proxy, value) in enumerate(zip(computation.inputs, inputs, strict=False)):
        origin = computation.origins.get(proxy.name, "")
        named = follow_origin(origin, roots)
        if isinstance(value, torch.Tensor) and isinstance(named, torch.Tensor) and not is_same_tensor(value, named):
            yield Fault(
                kind="unpacking",
                by=prologue.made_by,
                trace=prologue.name,
                line=unpacking_line(prologue, place, proxy.name),
                result=proxy.name,
                difference=STANDS_FOR_ANOTHER.format(name=proxy.name, origin=origin),
            )


def follow_origin(origin: str, roots: Mapping[str, object]) -> object:
    """The object that an origin such as `module.layers[0].weight` names; None where that cannot be followed."""
    try:
        return value_at(ast.parse(origin, mode="eval").body, roots)
    except (SyntaxError, LookupError, AttributeError, TypeError, ValueError):
        return None


def value_at(node: ast.expr, roots: Mapping[str, object]) -> Any:
    """The value of an expression of names, attributes and constant items; `ValueError` for another one."""
    if isinstance(node, ast.Name):
        return roots[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(value_at(node.value, roots), node.attr)
    if isinstance(node, ast.Subscript):
        owner: Any = value_at(node.value, roots)
        return owner[ast.literal_eval(node.slice)]
    raise ValueError(f"{ast.unparse(node)} is not a path")


def is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are one object, or lie in the same memory with the same metadata."""
    if one is other:
        return True
    described = [(t.dtype, t.device, tuple(t.shape), t.stride(), t.data_ptr()) for t in (one, other)]
    return described[0] == described[1]


def unpacking_line(prologue: Trace, place: int, name: str) -> str:
    """The line of a prologue that gives an input its value: that which hands over another name, or that of the name."""
    lines = [line.strip() for line in str(prologue).splitlines()]
    handing_over = next((line for line in reversed(lines) if line.startswith("tensors = (")), "")
    handed_over = [word.strip() for word in handing_over.removeprefix("tensors = (").removesuffix(")").split(",")]
    if handing_over and (place >= len(handed_over) or handed_over[place] != name):
        return handing_over
    return next((line for line in lines if line.startswith((f"{name} = ", f"({name},"))), lines[-1])
