"""Reduce a bucket of gradients as one flat tensor, for backends that cannot coalesce collectives.

NCCL coalesces the collectives of several tensors without copies. Other backends run one collective for each tensor, or,
like gloo, copy the tensors into a flat tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.parallel.buckets import tensor_of
from thunder_core.backend.parallel.emitter import Emitter
from thunder_core.backend.parallel.operators import OPERATORS, operator, shard_rows, sums_with_own_gradients
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.collectives import OPERATORS as C10D
from thunder_core.tracing.library.collectives import group_of

FUNCTIONAL: Any = torch.ops._c10d_functional
ATEN: Any = torch.ops.aten
# The bound symbols that begin a reduction, the bound symbols that wait and compute the results, and the results.
Reduction = tuple[list[BoundSymbol], list[BoundSymbol], list[TensorProxy]]


def coalesces(group_name: str, device: torch.device) -> bool:
    """Whether the backend of a group coalesces collectives.

    True if the backend is unknown, such as for a process group implemented in Python.
    """
    try:
        return bool(group_of(group_name)._get_backend(device).supports_coalescing)
    except (AttributeError, RuntimeError):
        return True


def reduces_in_place(group_name: str, device: torch.device) -> bool:
    """Whether gradients are reduce-scattered in place.

    They are on CPU with gloo, where `thunder_c10d.reduce_scatter_tensor_` needs the least memory.
    """
    return device.type == "cpu" and bool(group_of(group_name)._get_backend(device).name() == "gloo")


@operator("(Tensor rows_by_rank, str group_name) -> Tensor")
def average_own_row(rows_by_rank: Tensor, group_name: str) -> Tensor:
    """Return this rank's row of the sum over the ranks of a group, divided by the number of ranks."""
    if rows_by_rank.is_meta:
        return rows_by_rank.new_empty(rows_by_rank.shape[1:])
    group = group_of(group_name)
    average: Tensor = rows_by_rank[group.rank()] * (1 / group.size())
    return average


@operator("(Tensor[] gradients, Tensor[] parameters, float factor) -> Tensor")
def take_into_flat(gradients: list[Tensor], parameters: list[Tensor], factor: float) -> Tensor:
    """Compute the same scaled sums as `take_gradients`, and return them in one flat tensor."""
    sizes = [gradient.numel() for gradient in gradients]
    flat = gradients[0].new_empty(sum(sizes))
    if not flat.is_meta:
        sums = sums_with_own_gradients(gradients, parameters)
        for part, total in zip(torch.split_with_sizes(flat, sizes), sums, strict=True):
            torch.mul(total, factor, out=part.view(total.shape))
    return flat


def sum_flat(emitter: Emitter, group_name: str, bsyms: Sequence[BoundSymbol], flat: TensorProxy) -> Reduction:
    """Return the bound symbols that all-reduce a flat tensor of gradients in place, and the sums as views of it."""
    begin = emitter.call(FUNCTIONAL.all_reduce_.default, flat, "sum", group_name, at=bsyms[0])
    begin = replace(begin, mutates=(flat.name,))
    wait = emitter.call(FUNCTIONAL.wait_tensor.default, begin.output, at=bsyms[0])
    view_bsyms, sums = views_of_flat(emitter, bsyms, wait.output, [tensor_of(bsym).shape for bsym in bsyms])
    return [begin], [wait, *view_bsyms], sums


def scatter_flat(
    emitter: Emitter, group_name: str, bsyms: Sequence[BoundSymbol], gradients: Sequence[TensorProxy]
) -> Reduction:
    """Return the bound symbols that reduce-scatter gradients as one flat tensor, and average the shards."""
    size, at = group_of(group_name).size(), bsyms[0]
    rows_by_rank = emitter.call(ATEN._chunk_cat.default, list(gradients), 0, size, at=at)
    reduce = scatter_in_place if reduces_in_place(group_name, gradients[0].device) else scatter_rows
    begin, ends, average = reduce(emitter, group_name, at, rows_by_rank.output)
    shapes = [(shard_rows(gradient.shape[0], size), *gradient.shape[1:]) for gradient in gradients]
    view_bsyms, shards = views_of_flat(emitter, bsyms, average, shapes)
    return [rows_by_rank, begin], [*ends, *view_bsyms], shards


# The bound symbol that begins a collective, the bound symbols that wait and compute the result, and the result.
Scattering = tuple[BoundSymbol, list[BoundSymbol], TensorProxy]


def scatter_rows(emitter: Emitter, group_name: str, at: BoundSymbol, rows_by_rank: TensorProxy) -> Scattering:
    """Return the bound symbols that reduce-scatter a tensor with one row for each rank.

    Each rank gets its own row, averaged over the ranks.
    """
    size = group_of(group_name).size()
    begin = emitter.call(FUNCTIONAL.reduce_scatter_tensor.default, rows_by_rank, "sum", size, group_name, at=at)
    wait = emitter.call(FUNCTIONAL.wait_tensor.default, begin.output, at=at)
    average = emitter.call(ATEN.mul.Tensor, wait.output, 1 / size, at=at)
    flat = emitter.call(ATEN.view.default, average.output, [-1], at=at)
    return begin, [wait, average, flat], flat.output


def scatter_in_place(emitter: Emitter, group_name: str, at: BoundSymbol, rows_by_rank: TensorProxy) -> Scattering:
    """Return the bound symbols that reduce-scatter like `scatter_rows`, but in place: the sums overwrite the rows."""
    begin = emitter.call(C10D.reduce_scatter_tensor_.default, rows_by_rank, "sum", group_name, at=at)
    wait = emitter.call(C10D.wait.default, begin.output, [rows_by_rank], [], at=at)
    begin, wait = (replace(bsym, mutates=(rows_by_rank.name,)) for bsym in (begin, wait))
    average = emitter.call(OPERATORS.average_own_row.default, rows_by_rank, group_name, at=at)
    return begin, [wait, average], average.output


def views_of_flat(
    emitter: Emitter, bsyms: Sequence[BoundSymbol], flat: TensorProxy, shapes: Sequence[Sequence[int]]
) -> tuple[list[BoundSymbol], list[TensorProxy]]:
    """Return the bound symbols that view a flat tensor as tensors of these shapes, and the tensors."""
    sizes = [math.prod(shape) for shape in shapes]
    split = emitter.call(ATEN.split_with_sizes.default, flat, sizes, at=bsyms[0])
    views = [
        emitter.call(ATEN.view.default, part, list(shape), at=bsym)
        for bsym, part, shape in zip(bsyms, split.output, shapes, strict=True)
    ]
    return [split, *views], [view.output for view in views]
