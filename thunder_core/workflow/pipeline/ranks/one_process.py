"""Compute the steps of all ranks in one process, as the reference for a parallel program."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree

from thunder_core.tracing.extension.subclass import subclass_of
from thunder_core.workflow.models.inputs.input_tensors import map_tensors
from thunder_core.workflow.validation.preserved_state import preserve_buffers


def in_one_process(model: torch.nn.Module, size: int) -> torch.nn.Module:
    """Return a model that computes the steps of `size` ranks in sequence, and joins their results.

    The returned model shares the state of `model`. Its loss is the mean of the ranks' losses, so its gradients are the
    means of the ranks' gradients. Each step draws the same random numbers as its rank. The buffers come from the first
    rank.
    """
    kind: Any = type(model)

    @functools.wraps(kind.forward)
    def forward(self: Any, **inputs: Any) -> Any:
        seed, parts = torch.initial_seed(), []
        for rank in reversed(range(size)):
            seed_rank(seed, rank)
            with preserve_buffers(self) if rank else nullcontext():
                parts.append(kind.forward(self, **rows_of(inputs, rank, size)))
        flat = [_pytree.tree_flatten(part) for part in reversed(parts)]
        return _pytree.tree_unflatten(join_results([leaves for leaves, _ in flat]), flat[0][1])

    twin: Any = object.__new__(subclass_of(kind, {"forward": forward}))
    object.__setattr__(twin, "__dict__", model.__dict__)
    return twin  # type: ignore[no-any-return]


def seed_rank(seed: int, rank: int) -> None:
    """Seed the generators for a rank, so that each rank gets different random numbers."""
    torch.manual_seed(seed + rank)
    random.seed(seed + rank)


def rows_of(inputs: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the rows of a rank from the inputs of all ranks.

    A tensor with fewer rows than the other inputs is not divided: each rank gets the full tensor.
    """
    rows = max(
        (value.shape[0] for value in inputs.values() if isinstance(value, torch.Tensor) and value.ndim), default=0
    )

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.shape[0] != rows:
            return tensor
        return tensor[rank * rows // size : (rank + 1) * rows // size].clone()

    return {name: map_tensors(value, part) for name, value in inputs.items()}


def join_results(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Join the leaves of the results of all ranks: concatenate tensors, and average floating-point scalars.

    Other leaves come from the first rank.
    """
    return [_join(leaves) for leaves in zip(*parts, strict=True)]


def _join(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if not isinstance(first, torch.Tensor):
        return first
    if first.ndim:
        return torch.cat(list(leaves))
    return torch.stack(list(leaves)).mean() if first.is_floating_point() else first
