"""Updates that eager PyTorch refuses, since it casts no result to a lesser kind of dtype (float to int) to write it.

PyTorch's functions for metadata let some of them pass, and a compiled kernel would write a rounded number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from thunder_core.capture.writes import OUT, without_write, written_values
from thunder_core.ir.tree import leaves


def require_castable(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `RuntimeError` where the result of an element-wise update cannot be cast to the dtype that it updates.

    The dtype of the result is that of the operator which does not write; it is asked for only where it may be another
    kind of number than what is updated.
    """
    plain = _plain(operator)
    if plain is None:
        return
    updated = _tensors(next(written_values(operator, args, kwargs), None))
    if not any(_may_be_lesser(tensor, (args, kwargs)) for tensor in updated):
        return
    results = _tensors(plain(*args, **{name: value for name, value in kwargs.items() if name != OUT}))
    for result, into in zip(results, updated, strict=True):
        if not torch.can_cast(result.dtype, into.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {into.dtype}")


@cache
def _plain(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """For an update that goes element by element, of one tensor or of each of a list, what computes without writing."""
    if not operator._schema.is_mutable:
        return None
    by_element = torch.Tag.pointwise in operator.tags or operator._schema.name.startswith("aten::_foreach_")
    return without_write(operator) if by_element else None


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def _may_be_lesser(into: torch.Tensor, value: Any) -> bool:
    """Whether an update may compute numbers that are more than what it updates: any for integers, else complex ones."""
    if not into.is_floating_point():
        return not into.is_complex()
    return any(leaf.is_complex() if isinstance(leaf, torch.Tensor) else type(leaf) is complex for leaf in leaves(value))
