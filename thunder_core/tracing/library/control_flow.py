"""The functions that traces call at run time for branches and loops, such as PyTorch's higher-order operators.

The arms of a branch and the body of a loop are sub-traces. They take tensors and numbers as separate arguments, and
return a tuple of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Body = Callable[..., tuple[torch.Tensor, ...]]


def cond(
    predicate: torch.Tensor, true_branch: Body, false_branch: Body, operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Call one of the branches of `torch.cond` on the operands, depending on a predicate of one element."""
    return connect_to_operands((true_branch if predicate else false_branch)(*operands), operands)


def take_arm(
    condition: torch.Tensor, true_arm: Body, false_arm: Body, operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Call one of the arms of a Python branch. Operands of the other arm get no gradient, as in eager PyTorch."""
    return (true_arm if condition else false_arm)(*operands)


def while_loop(
    condition: Callable[..., tuple[torch.Tensor]], body: Body, carried: Sequence[torch.Tensor], operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Replace the carried tensors by the results of the body while the condition is true, and return them at the end.

    The condition returns a tuple with a tensor of one element. If the body never runs, the results are copies, which
    share no memory with the inputs.
    """
    current, is_first = tuple(carried), True
    while condition(*current, *operands)[0]:
        current, is_first = body(*current, *operands), False
    results = tuple(tensor.clone() for tensor in current) if is_first else current
    return connect_to_operands(results, (*carried, *operands))


def scan(
    combine: Body, initial: Sequence[torch.Tensor], slices: Sequence[torch.Tensor], operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Combine carried tensors with the slices of other tensors along their first dimension, in order.

    Returns the final carried tensors, and a contiguous stack of each further result of `combine`. The initial tensors
    are copied if autograd may save them, so that a program may write to the originals afterwards. If there are no
    slices, `combine` is called with zeros to find the shapes of the stacks, as in PyTorch since 2.14. If the number of
    slices is symbolic, the tensors have no data, and one call of `combine` represents all calls.
    """
    count = slices[0].shape[0]
    is_symbolic = isinstance(count, torch.SymInt)
    carried = tuple(tensor.clone() for tensor in initial) if torch.is_grad_enabled() else tuple(initial)
    rows = []
    for index in range(1 if is_symbolic else count):
        results = combine(*carried, *(tensor[index] for tensor in slices), *operands)
        carried = results[: len(initial)]
        rows.append(results[len(initial) :])
    if is_symbolic:
        stacks = [row.expand(count, *row.shape).contiguous() for row in rows[0]]
    elif rows:
        stacks = [torch.stack(column).contiguous() for column in zip(*rows, strict=True)]
    else:
        results = combine(*carried, *(tensor.new_zeros(tensor.shape[1:]) for tensor in slices), *operands)
        stacks = [row.new_empty((0, *row.shape)) for row in results[len(initial) :]]
    results = (*carried, *stacks)
    return connect_to_operands(results, (*initial, *slices, *operands))


def map_slices(body: Body, slices: Sequence[torch.Tensor], operands: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Apply the body to the slices of tensors along their first dimension, and stack the results."""
    return scan(body, (), slices, operands)


def connect_to_operands(results: tuple[torch.Tensor, ...], operands: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Connect results to operands in autograd's graph, so that an operand without effect gets a gradient of zeros.

    PyTorch's higher-order operators give every operand a gradient.
    """
    tracked = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.requires_grad]
    if not tracked or not torch.is_grad_enabled():
        return results
    indices = [index for index, result in enumerate(results) if result.is_floating_point() or result.is_complex()]
    values: Any = _ConnectToOperands.apply(len(indices), *(results[index] for index in indices), *tracked)  # type: ignore[no-untyped-call]
    by_index = dict(zip(indices, values, strict=True))
    return tuple(by_index.get(index, result) for index, result in enumerate(results))


class _ConnectToOperands(torch.autograd.Function):
    """Return copies of the first `count` tensors with their gradients; the gradients of the other tensors are zeros."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.operands = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors[count:]]
        # The program may write to the results, so they are copies of the tensors that the branch has saved.
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.operands)
        return (None, *gradients, *zeros)
