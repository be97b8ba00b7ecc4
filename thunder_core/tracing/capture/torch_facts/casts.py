"""A check for in-place operations that eager PyTorch refuses because of dtypes: `x.add_(0.5)` for an integer tensor.

Fakes accept some of these operations, and a compiled kernel would write a rounded number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from thunder_core.tracing.capture.torch_facts.writes import OUT, without_write, written_values
from thunder_core.tracing.ir.tree import leaves


def require_castable(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `RuntimeError` if the result of an element-wise update, such as `x.add_(y)`, cannot be cast to the tensor's
    dtype.

    To get the result's dtype, the out-of-place operator runs on fakes, but only if the result may be of another kind
    (integer, float or complex) than the tensor.
    """
    plain = _operator_without_write(operator)
    if plain is None:
        return
    tensors_updated = _tensors_in(next(written_values(operator, args, kwargs), None))
    if not any(_may_lose_a_kind(tensor, (args, kwargs)) for tensor in tensors_updated):
        return
    results = _tensors_in(plain(*args, **{name: value for name, value in kwargs.items() if name != OUT}))
    for result, into in zip(results, tensors_updated, strict=True):
        if not torch.can_cast(result.dtype, into.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {into.dtype}")


@cache
def _operator_without_write(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the out-of-place operator of an element-wise update (`add` for `add_`), or None for other operators."""
    if not operator._schema.is_mutable:
        return None
    is_elementwise = torch.Tag.pointwise in operator.tags or operator._schema.name.startswith("aten::_foreach_")
    return without_write(operator) if is_elementwise else None


def _tensors_in(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def _may_lose_a_kind(into: torch.Tensor, value: object) -> bool:
    """Whether an update may compute numbers of a kind that its tensor cannot hold.

    For an integer tensor, this is always possible. For a float tensor, it requires complex operands.
    """
    if not into.is_floating_point():
        return not into.is_complex()
    return any(leaf.is_complex() if isinstance(leaf, torch.Tensor) else type(leaf) is complex for leaf in leaves(value))
