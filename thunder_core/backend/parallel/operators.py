"""Operators that stand in a trace for the communication of parallel training, until it is put into buckets.

Each of them has an implementation, so a trace, its derivative by autograd, and eager PyTorch compute the same with
them. `collectives` replaces them by PyTorch's functional collectives. Groups are given by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.library.collectives import group_of

NAMESPACE = "thunder_parallel"
_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
OPERATORS: Any = getattr(torch.ops, NAMESPACE)
FUNCTIONAL: Any = torch.ops._c10d_functional


def operator(signature: str, derivative: type[torch.autograd.Function] | None = None) -> Callable[..., Any]:
    """Define an operator by the decorated function, with a derivative that calls the operator below autograd."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        _library.define(f"{name}{signature}")
        _library.impl(name, function, "CompositeExplicitAutograd")
        if derivative is not None:
            _library.impl(name, derivative.apply, "Autograd")
        return function

    return define


def shard_rows(rows: int, size: int) -> int:
    """The number of rows of a full shard, as `torch.chunk` divides them; the last shards may have fewer."""
    return -(-rows // size)


def rows_of_rank(rows: int, rank: int, size: int) -> tuple[int, int]:
    """The first row of a rank's shard, and its number of rows."""
    most = shard_rows(rows, size)
    start = min(rank * most, rows)
    return start, min(most, rows - start)


def row_padding(dimensions: int, missing: int) -> list[int]:
    """The padding that adds rows behind those of a tensor, as `torch.nn.functional.pad` takes it; empty for no rows."""
    return [0, 0] * (dimensions - 1) + [0, missing] if missing else []


def padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A tensor with zeros behind its rows, so that it has this number of rows."""
    padding = row_padding(tensor.dim(), rows - tensor.shape[0])
    return torch.nn.functional.pad(tensor, padding) if padding else tensor


class Replicate(torch.autograd.Function):
    """The derivative of `replicate`: the gradient is averaged over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group_name: str) -> Any:
        """Call the operator below autograd."""
        ctx.group_name = group_name
        ctx.save_for_backward(tensor)
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.replicate(tensor, group_name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Average the gradient."""
        return OPERATORS.average_gradient(gradient, *ctx.saved_tensors, ctx.group_name), None


class GatherParameter(torch.autograd.Function):
    """The derivative of `gather_parameter`: each rank gets its rows of the average of the gradients."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, rows: int, group_name: str, reshard: bool) -> Any:
        """Call the operator below autograd."""
        ctx.group_name = group_name
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.gather_parameter(shard, rows, group_name, reshard)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Reduce the gradients and scatter the average."""
        return OPERATORS.scatter_gradient(gradient, ctx.group_name), None, None, None


class CopyToGroup(torch.autograd.Function):
    """The derivative of `copy_to_group`: the gradients of all ranks are added."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group_name: str) -> Any:
        """Call the operator below autograd."""
        ctx.group_name = group_name
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.copy_to_group(tensor, group_name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Add the gradients of all ranks."""
        return OPERATORS.reduce_from_group(gradient, ctx.group_name), None


class ReduceFromGroup(torch.autograd.Function):
    """The derivative of `reduce_from_group`: each rank gets the gradient, which is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group_name: str) -> Any:
        """Call the operator below autograd."""
        ctx.group_name = group_name
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.reduce_from_group(tensor, group_name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Give each rank the gradient."""
        return OPERATORS.copy_to_group(gradient, ctx.group_name), None


@operator("(str group_name, Device? device=None) -> Tensor")
def synchronize(group_name: str, device: torch.device | None = None) -> torch.Tensor:
    """Say that the gradients of this call of a module are averaged; it computes nothing."""
    return torch.empty(0, device=device)


@operator("(Tensor(a) tensor, str group_name) -> Tensor(a)", Replicate)
def replicate(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """A parameter that is the same on all ranks."""
    return tensor.view_as(tensor)


@operator("(Tensor[] gradients, Tensor[] parameters, float factor) -> Tensor[]")
def take_gradients(gradients: list[torch.Tensor], parameters: list[torch.Tensor], factor: float) -> list[torch.Tensor]:
    """Add each parameter's `.grad` to its gradient, multiply by a factor, and set `.grad` to None.

    So gradients that were accumulated without synchronization are averaged with that of the call that synchronizes, as
    in `DistributedDataParallel`. A backward that does not accumulate, as that of `torch.autograd.grad`, leaves `.grad`.
    """
    if gradients[0].is_meta:
        return [torch.empty_like(one, memory_format=torch.contiguous_format) for one in gradients]
    sums = [gradient.contiguous() for gradient in gradients]
    for place, parameter in enumerate(parameters):
        if parameter.grad is not None and is_accumulated(parameter):
            sums[place] = parameter.grad + sums[place]
            parameter.grad = None
    return list(torch._foreach_mul(sums, factor))


def is_accumulated(parameter: torch.Tensor) -> bool:
    """Whether the backward that runs now adds to `.grad` of a parameter."""
    try:
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # no backward runs, or `torch.autograd.grad` returns the gradient of the parameter
        return False


@operator("(Tensor gradient, Tensor parameter, str group_name) -> Tensor")
def average_gradient(gradient: torch.Tensor, parameter: torch.Tensor, group_name: str) -> torch.Tensor:
    """The average of the gradients of all ranks, to which the `.grad` of the parameter is added first."""
    if gradient.is_meta:
        return torch.empty_like(gradient, memory_format=torch.contiguous_format)
    (scaled,) = take_gradients([gradient], [parameter], 1 / group_of(group_name).size())
    result: torch.Tensor = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(scaled, "sum", group_name))
    return result


@operator("(Tensor shard, int rows, str group_name, bool reshard_after_forward) -> Tensor", GatherParameter)
def gather_parameter(
    shard: torch.Tensor,
    rows: int,
    group_name: str,
    reshard_after_forward: bool,
) -> torch.Tensor:
    """A parameter of this number of rows, of which each rank has a shard; a backward may gather it again.

    All shards have the same number of rows; those behind the rows of the parameter are left out.
    """
    if shard.is_meta:
        return shard.new_empty((rows, *shard.shape[1:]))
    whole = FUNCTIONAL.all_gather_into_tensor(shard.contiguous(), group_of(group_name).size(), group_name)
    result: torch.Tensor = FUNCTIONAL.wait_tensor(whole)
    return result.narrow(0, 0, rows).clone() if result.shape[0] != rows else result


@operator("(Tensor gradient, str group_name) -> Tensor")
def scatter_gradient(gradient: torch.Tensor, group_name: str) -> torch.Tensor:
    """The shard of a rank of the average of the gradients of all ranks."""
    size = group_of(group_name).size()
    own = shard_rows(gradient.shape[0], size)
    if gradient.is_meta:
        return gradient.new_empty((own, *gradient.shape[1:]))
    whole = padded(gradient, own * size).contiguous()
    shard = FUNCTIONAL.wait_tensor(FUNCTIONAL.reduce_scatter_tensor(whole, "sum", size, group_name))
    result: torch.Tensor = shard * (1 / size)
    return result


@operator("(Tensor(a) tensor, str group_name) -> Tensor(a)", CopyToGroup)
def copy_to_group(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """A tensor that is the same on all ranks, with which each rank computes a part."""
    return tensor.view_as(tensor)


@operator("(Tensor tensor, str group_name) -> Tensor", ReduceFromGroup)
def reduce_from_group(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """The sum of the tensors of all ranks."""
    if tensor.is_meta:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)
    result: torch.Tensor = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(tensor.contiguous(), "sum", group_name))
    return result
