"""The check of unpacking: for each input of the computation, the prologue must pass the object at its origin.

The check reads the origin as the trace prints it, and not the path that the prologue was made from. So it also finds an
origin that names another object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.internal_check import Fault

WRONG_ORIGIN = "`{name}` is not {origin}"


def unpacking_faults(
    computation: Trace, inputs: tuple[Any, ...], roots: Mapping[str, object], prologue: Trace
) -> Iterator[Fault]:
    """Yield a fault for each tensor input that is not the tensor at its origin.

    `roots` are the objects that origins begin with: `module`, `args` and `kwargs`.
    """
    for index, (proxy, value) in enumerate(zip(computation.inputs, inputs, strict=False)):
        origin = computation.origins.get(proxy.name, "")
        named = follow_origin(origin, roots)
        if isinstance(value, torch.Tensor) and isinstance(named, torch.Tensor) and not is_same_tensor(value, named):
            yield Fault(
                kind="unpacking",
                by=prologue.made_by,
                trace=prologue.name,
                line=unpacking_line(prologue, index, proxy.name),
                result=proxy.name,
                difference=WRONG_ORIGIN.format(name=proxy.name, origin=origin),
            )


def follow_origin(origin: str, roots: Mapping[str, object]) -> object:
    """Return the object that an origin such as `module.layers[0].weight` names; None if there is none."""
    try:
        return value_at(ast.parse(origin, mode="eval").body, roots)
    except (SyntaxError, LookupError, AttributeError, TypeError, ValueError):
        return None


def value_at(node: ast.expr, roots: Mapping[str, object]) -> Any:
    """Return the value of an expression of names, attributes and constant items; raise `ValueError` for others."""
    if isinstance(node, ast.Name):
        return roots[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(value_at(node.value, roots), node.attr)
    if isinstance(node, ast.Subscript):
        owner: Any = value_at(node.value, roots)
        return owner[ast.literal_eval(node.slice)]
    raise ValueError(f"{ast.unparse(node)} is not a path")


def is_same_tensor(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are the same object, or have the same memory and metadata."""
    if first is second:
        return True
    described = [(t.dtype, t.device, tuple(t.shape), t.stride(), t.data_ptr()) for t in (first, second)]
    return described[0] == described[1]


def unpacking_line(prologue: Trace, index: int, name: str) -> str:
    """Return the prologue's line for a wrong input.

    This is the line `tensors = (...)` if it has another name at this index; otherwise the line that assigns the name;
    otherwise the line that returns.
    """
    assignments = {proxy.name: bsym for bsym in prologue.bound_symbols for proxy in bsym.defines}
    passing = assignments.get("tensors")
    if passing is not None and (index >= len(passing.inputs) or passing.inputs[index].name != name):
        return bound_symbol_text(passing)
    if name in assignments:
        return bound_symbol_text(assignments[name])
    return f"return {literal(prologue.output, Scope())}"
