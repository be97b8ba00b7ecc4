"""Slices whose start or end is an expression of sizes, in the lowerings of PyTorch 2.11.

PyTorch 2.11 lowers such a slice only if it knows that the index is within its dimension. Otherwise, its lowering needs
an unbacked symbol as the size of the result, which the graphs of regions do not have. Later versions clamp the index by
a minimum or a maximum, as this module does.
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
# Whether Inductor's own lowering clamps indices. The versions that do so have this function.
INDUCTOR_CLAMPS = hasattr(lowering, "_register_unbacked_slice_size_bindings")
inductor_slice: Any = lowering.slice_
maximum: Any = functions.Max
minimum: Any = functions.Min
virtualized: Any = V  # `V.graph` is the graph being lowered


@contextmanager
def slices_with_expressions() -> Iterator[None]:
    """Lower slices with expressions as indices within the context."""
    replaced = {} if INDUCTOR_CLAMPS else {SLICE: slice_dimension}
    with mock.patch.dict(lowering.lowerings, replaced):
        yield


def slice_dimension(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1, clamp: bool = True) -> Any:
    """Return the lowered slice; its start and end are clamped to the dimension.

    PyTorch lowers a slice if the sign of an index is not known: the index may count from the end.
    """
    size = x.get_size()[dim]
    if not clamp or not all(index is None or has_known_sign(sympy.sympify(index)) for index in (start, end)):
        return inductor_slice(x, dim, start, end, step, clamp)
    first = position(start, size, 0)
    last = position(end, size, size)
    if not guard_or_false(sympy.Le(first, last)):
        last = first + maximum(last - first, 0)
    return inductor_slice(x, dim, first, last, step, clamp=False)


def position(index: Any, size: Any, default: Any) -> Any:
    """Return the position of an index: negative indices count from the end; the result is clamped to 0..size."""
    if index is None:
        return default
    index = sympy.sympify(index)
    if guard_or_false(sympy.Lt(index, 0)):
        index = index + size
        return index if guard_or_false(sympy.Ge(index, 0)) else maximum(index, 0)
    return index if guard_or_false(sympy.Le(index, size)) else minimum(index, size)


def has_known_sign(index: Any) -> bool:
    """Whether the traced sizes decide if an index is negative."""
    return guard_or_false(sympy.Ge(index, 0)) or guard_or_false(sympy.Lt(index, 0))


def guard_or_false(condition: Any) -> bool:
    """Evaluate a condition for the traced sizes and guard the answer; False, without a guard, if undecided."""
    return bool(virtualized.graph.sizevars.guard_or_false(condition))
