"""Replace masks by indices: `x[mask]` becomes `x[mask.nonzero().unbind(1)]`.

The shape of the derivative of the replacement does not depend on data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.calls import entries_of
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.tree import leaves

INDEXING = frozenset(
    {
        *(torch.Tensor.__getitem__, torch.Tensor.__setitem__),
        *(torch.index_put, torch.index_put_, torch.Tensor.index_put, torch.Tensor.index_put_),
    }
)
SELECTING = frozenset({torch.masked_select, torch.Tensor.masked_select})
PLAIN_ENTRIES = (int, slice, type(None), type(Ellipsis))
Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
INDEXED_AND_INDEX = 2  # the number of required positional arguments: the indexed tensor and the index


def is_mask(entry: object) -> bool:
    """Whether an entry of an index is a boolean tensor with at least one dimension."""
    return isinstance(entry, torch.Tensor) and entry.dtype is torch.bool and entry.dim() > 0


@dataclass(frozen=True)
class Masks:
    """Replaces masks in calls by indices.

    `record(function, args, kwargs)` records the computation of the indices. `fake(tensor)` returns the fake of a
    tensor. `can_use_count(mask)` returns whether the number of true elements may be a result size: the number has a
    symbol, or all sizes of the recording are constants.
    """

    record: Callable[..., Any]
    fake: Callable[[torch.Tensor], torch.Tensor]
    can_use_count: Callable[[torch.Tensor], bool]

    def without(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        """Return the call with indices instead of masks, or None to keep the call.

        The call is kept if it has no masks, if its masks do not fit the tensor, or if it has a single mask whose
        count can be used and no derivative is needed.
        """
        if function in SELECTING:
            return self._as_indexing(args, kwargs)
        if function not in INDEXING or len(args) < INDEXED_AND_INDEX or not any(map(is_mask, entries_of(args[1]))):
            return None
        masks = [entry for entry in entries_of(args[1]) if is_mask(entry)]
        if len(masks) == 1 and not self._requires_grad((args, kwargs)) and self.can_use_count(masks[0]):
            return None
        if not self._constrain_shapes(args[0], entries_of(args[1])):
            return None
        entries: list[Any] = []
        for entry in entries_of(args[1]):
            entries += self._record_true_indices(entry) if is_mask(entry) else [entry]
        return function, (args[0], tuple(entries), *args[2:]), kwargs

    def _record_true_indices(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """Record and return the indices of a mask's true elements, one tensor for each dimension."""
        indices = self.record(torch.Tensor.nonzero, (mask,), {})
        return list(self.record(torch.Tensor.unbind, (indices, 1), {}))

    def _requires_grad(self, tree: object) -> bool:
        """Whether autograd is on and one of the nested tensors requires a gradient."""
        return torch.is_grad_enabled() and any(self.fake(tensor).requires_grad for tensor in tensors_in(tree))

    def _constrain_shapes(self, tensor: torch.Tensor, entries: Sequence[Any]) -> bool:
        """Whether each mask has the shape of the dimensions that it indexes. If so, constrain these sizes to be
        equal.
        """
        if not all(type(entry) in PLAIN_ENTRIES or isinstance(entry, torch.Tensor) for entry in entries):
            return False
        shape, dim = tuple(self.fake(tensor).shape), 0
        consumed = sum(map(number_consumed, entries))
        for entry in entries:
            if is_mask(entry) and not have_equal_sizes(self.fake(entry).shape, shape[dim : dim + entry.dim()]):
                return False
            dim += len(shape) - consumed if entry is Ellipsis else number_consumed(entry)
        return True

    def _as_indexing(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        """Return `masked_select(x, mask)` as `x[mask]` of the broadcast tensors, or None to keep the call."""
        tensors = list(leaves((tuple(args), dict(kwargs))))
        if kwargs.keys() - {"input", "mask"} or len(tensors) != len(tensors_in(tensors)) or not is_mask(tensors[1]):
            return None
        is_same = have_equal_sizes(*(self.fake(tensor).shape for tensor in tensors))
        if is_same and not self._requires_grad(tensors) and self.can_use_count(tensors[1]):
            return None
        pair = tensors if is_same else self.record(torch.functional.broadcast_tensors, tuple(tensors), {})
        return torch.Tensor.__getitem__, (pair[0], tuple(self._record_true_indices(pair[1]))), {}


def number_consumed(entry: Any) -> int:
    """Return the number of dimensions that an entry of an index consumes; 0 for an ellipsis."""
    return entry.dim() if is_mask(entry) else int(entry is not None and entry is not Ellipsis)


def have_equal_sizes(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are equal in this call; if they are, constrain them to be equal in each call."""
    return [*map(hint_of, first)] == [*map(hint_of, second)] and all(map(bool, map(operator.eq, first, second)))
