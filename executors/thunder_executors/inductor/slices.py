"""Slices whose start or end is an expression of sizes, in the lowerings of PyTorch 2.11.

PyTorch 2.11 lowers such a slice only if it knows that the index is within its dimension. Otherwise, it needs a size
that depends on values (an unbacked symbol). Later versions clamp the index by a minimum or a maximum, as this module
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.virtualized import V
from torch.utils._sympy import functions

SLICE = torch.ops.aten.slice.Tensor
CLAMPS_BY_EXPRESSIONS = hasattr(lowering, "_register_unbacked_slice_size_bindings")
lowered_slice: Any = lowering.slice_
maximum: Any = functions.Max
minimum: Any = functions.Min
virtualized: Any = V  # `V.graph` is the graph being lowered


@contextmanager
def slices_with_expressions() -> Iterator[None]:
    """Lower slices with expressions as indices within the context."""
    replaced = {} if CLAMPS_BY_EXPRESSIONS else {SLICE: slice_dimension}
    with mock.patch.dict(lowering.lowerings, replaced):
        yield


def slice_dimension(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1, clamp: bool = True) -> Any:
    """Return the lowered slice; expressions as start or end are clamped to the dimension."""
    size = x.get_size()[dim]
    if not clamp or not any(isinstance(number, sympy.Expr) for number in (start, end, size)):
        return lowered_slice(x, dim, start, end, step, clamp)
    first = position(start, size, 0)
    last = position(end, size, size)
    if not is_known(sympy.Le(first, last)):
        last = first + maximum(last - first, 0)
    return lowered_slice(x, dim, first, last, step, clamp=False)


def position(index: Any, size: Any, default: Any) -> Any:
    """Return an index as an expression that is clamped to the range from zero to the size of its dimension."""
    if index is None:
        return default
    index = sympy.sympify(index)
    if is_known(sympy.Lt(index, 0)):
        index = index + size
        return index if is_known(sympy.Ge(index, 0)) else maximum(index, 0)
    return index if is_known(sympy.Le(index, size)) else minimum(index, size)


def is_known(condition: Any) -> bool:
    """Whether a condition on the traced sizes holds, which becomes a guard; False if the sizes do not decide it."""
    return bool(virtualized.graph.sizevars.guard_or_false(condition))
