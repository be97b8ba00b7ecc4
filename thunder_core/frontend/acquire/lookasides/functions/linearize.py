"""torch.func.linearize: the JVP at a point, as the transpose of the linear function that `vjp` returns.

Eager PyTorch runs the function twice and traces it with `make_fx`. Here the function runs once, and the values that the
derivative reads are computed before the derivative is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.func import linearize, vjp
from torch.utils._pytree import tree_flatten, tree_map

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun

PROPERTIES = ("shape", "device", "dtype")  # properties of tangents that must match the primals


@lookaside(linearize)
def call_linearized(run: TracedRun, /, func: Callable[..., Any], *primals: Any) -> Any:
    """Return the value of a function and its derivative at the primals."""
    call = run.machine.call
    output, transposed = call(vjp, func, *primals)
    zeros = tree_map(torch.zeros_like, output)
    _, derivative = call(vjp, transposed, zeros)
    return output, partial(_apply, call, derivative, primals)


def _apply(call: Callable[..., Any], derivative: Callable[..., Any], primals: Sequence[Any], *tangents: Any) -> Any:
    """Apply the derivative to tangents, after the checks that PyTorch makes."""
    flat_primals, primals_structure = tree_flatten(tuple(primals))
    flat_tangents, structure = tree_flatten(tangents)
    if structure != primals_structure:
        raise RuntimeError(
            f"Expected the tangents {structure} to have the same argspec as the primals {primals_structure}"
        )
    for index, (primal, tangent) in enumerate(zip(flat_primals, flat_tangents, strict=True)):
        for name in PROPERTIES:
            if getattr(tangent, name) != getattr(primal, name):
                raise RuntimeError(
                    f"tangent:{index} with {name} {getattr(tangent, name)} in flattened pytree doesn't match the "
                    f"{name} {getattr(primal, name)} of the corresponding primal."
                )
    return call(derivative, tangents)[0]
