"""The operators of `thunder_parallel`, which represent the communication of parallel training in a trace.

Modules of parallel models call these operators. Each operator has an implementation and, if gradients pass through
it, a derivative, so that it also runs in eager PyTorch. The module `collectives` later replaces the operators in a
trace by PyTorch's functional collectives on buckets of tensors. Process groups are passed by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.backend.parallel.gradients.parameter_hooks import run_hooks_before_reduction
from thunder_core.backend.parallel.unreduced_gradients import OWNER, UNREDUCED
from thunder_core.tracing.library.collectives import group_of

NAMESPACE = "thunder_parallel"
_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
OPERATORS: Any = getattr(torch.ops, NAMESPACE)
FUNCTIONAL: Any = torch.ops._c10d_functional


def operator(signature: str, derivative: type[torch.autograd.Function] | None = None) -> Callable[..., Any]:
    """Define an operator with the decorated function as its implementation.

    `signature` is the schema without the name. `derivative` is the autograd function, which calls the operator below
    autograd; None for an operator without a derivative.
    """

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        _library.define(f"{name}{signature}")
        _library.impl(name, function, "CompositeExplicitAutograd")
        if derivative is not None:
            _library.impl(name, derivative.apply, "Autograd")
        return function

    return define


def shard_rows(rows: int, size: int) -> int:
    """Return the number of rows of a full shard, as in `torch.chunk`; the last shards may have fewer rows."""
    return -(-rows // size)


def rows_of_rank(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first row of a rank's shard, and the number of its rows."""
    full_shard = shard_rows(rows, size)
    start = min(rank * full_shard, rows)
    return start, min(full_shard, rows - start)


def row_padding(dimensions: int, missing: int) -> list[int]:
    """Return the argument `pad` of `torch.nn.functional.pad` that appends missing rows; empty if no row is missing."""
    return [0, 0] * (dimensions - 1) + [0, missing] if missing else []


def pad_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Append rows of zeros to a tensor, up to a number of rows."""
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
    """The derivative of `gather_parameter`: the shard of each rank gets its rows of the average of all gradients.

    If an unsharded leaf is passed, this leaf gets the full gradient of its rank instead, without communication. The
    gradients have the dtype of the shard.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shard: torch.Tensor,
        rows: int,
        group_name: str,
        reshard: bool,
        unsharded: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Any:
        """Call the operator below autograd."""
        ctx.group_name, ctx.to_unsharded, ctx.dtype = group_name, unsharded is not None, shard.dtype
        ctx.shard_device = None if device is None else shard.device
        ctx.save_for_backward(*(() if ctx.to_unsharded else (shard,)))
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.gather_parameter(shard, rows, group_name, reshard, unsharded, dtype, device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the shard of the averaged gradient, or the full gradient for the unsharded leaf."""
        gradient = gradient.to(ctx.dtype)
        if ctx.to_unsharded:
            return None, None, None, None, gradient.view_as(gradient), None, None
        shard = OPERATORS.scatter_gradient(gradient, *ctx.saved_tensors, ctx.group_name, ctx.shard_device)
        return shard, None, None, None, None, None, None


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
    """The derivative of `reduce_from_group`: the gradient of the sum, the same on all ranks, passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group_name: str) -> Any:
        """Call the operator below autograd."""
        ctx.group_name = group_name
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS.reduce_from_group(tensor, group_name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient unchanged."""
        return OPERATORS.copy_to_group(gradient, ctx.group_name), None


@operator("(str group_name, Device? device=None) -> Tensor")
def synchronize(group_name: str, device: torch.device | None = None) -> torch.Tensor:
    """Mark in a trace the call of a module whose gradients are averaged; the operator computes nothing."""
    return torch.empty(0, device=device)


@operator("(Tensor(a) tensor, str group_name) -> Tensor(a)", Replicate)
def replicate(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """Return a parameter that is the same on all ranks; the backward averages its gradient."""
    return tensor.view_as(tensor)


@operator("(Tensor[] gradients, Tensor[] parameters, float factor) -> Tensor[]")
def take_gradients(gradients: list[torch.Tensor], parameters: list[torch.Tensor], factor: float) -> list[torch.Tensor]:
    """Return the sums of gradients and of their parameters' `.grad`, times a factor, and set each `.grad` to None.

    Gradients that were accumulated without synchronization are averaged with the gradient of the synchronized call, as
    in `DistributedDataParallel`. A backward that does not accumulate, such as `torch.autograd.grad`, does not change
    `.grad`.
    """
    if gradients[0].is_meta:
        return [torch.empty_like(gradient, memory_format=torch.contiguous_format) for gradient in gradients]
    return list(torch._foreach_mul(sums_with_own_gradients(gradients, parameters), factor))


def sums_with_own_gradients(gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sums of gradients and of their parameters' `.grad`, and set each `.grad` to None.

    Hooks of a parameter run on its gradient before the addition, as in `DistributedDataParallel`. If the current
    backward does not accumulate into a parameter, its gradient is returned as it is.
    """
    sums = [gradient.contiguous() for gradient in gradients]
    for index, parameter in enumerate(parameters):
        owner = owner_of(parameter)
        if (owner.grad is None and not owner._backward_hooks) or not is_accumulated(parameter):
            continue
        if owner._backward_hooks:
            sums[index] = run_hooks_before_reduction(owner, sums[index])
        if owner.grad is not None:
            sums[index] = getattr(owner.grad, "_local_tensor", owner.grad) + sums[index]
            owner.grad = None
    return sums


def owner_of(leaf: torch.Tensor) -> torch.Tensor:
    """Return the parameter whose `.grad` accumulates the gradients of a leaf.

    This is the DTensor parameter to which tensor parallelism connects the leaf, or the leaf itself. For a shard of the
    recipe fsdp, which has an unreduced gradient, it is the leaf.
    """
    reference = None if hasattr(leaf, UNREDUCED) else getattr(leaf, OWNER, None)
    owner: torch.Tensor | None = None if reference is None else reference()
    return leaf if owner is None else owner


def is_accumulated(parameter: torch.Tensor) -> bool:
    """Whether the backward that runs now accumulates a gradient into the `.grad` of a parameter."""
    try:
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # no backward runs, or `torch.autograd.grad` returns the gradient of the parameter
        return False


@operator("(Tensor gradient, Tensor parameter, str group_name) -> Tensor")
def average_gradient(gradient: torch.Tensor, parameter: torch.Tensor, group_name: str) -> torch.Tensor:
    """Add the `.grad` of the parameter to the gradient, and return the average over all ranks."""
    if gradient.is_meta:
        return torch.empty_like(gradient, memory_format=torch.contiguous_format)
    (total,) = take_gradients([gradient], [parameter], 1.0)
    return average_over(total, group_name)


def average_over(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """Return the average of the tensors of all ranks of a group."""
    scaled = tensor * (1 / group_of(group_name).size())
    result: torch.Tensor = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(scaled, "sum", group_name))
    return result


GATHER_SIGNATURE = (
    "(Tensor shard, int rows, str group_name, bool reshard_after_forward, Tensor? unsharded=None, "
    "ScalarType? dtype=None, Device? device=None) -> Tensor"
)


@operator(GATHER_SIGNATURE, GatherParameter)
def gather_parameter(
    shard: torch.Tensor,
    rows: int,
    group_name: str,
    reshard_after_forward: bool,
    unsharded: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Gather a parameter with a number of rows from the shards of all ranks.

    All shards have the same number of rows; the padding rows at the end are dropped. If `reshard_after_forward` is
    set, the backward gathers the parameter again. If `unsharded` is given, the backward does not communicate: the
    gradient of this rank becomes the gradient of `unsharded`. If `dtype` is given, each rank casts its shard to this
    dtype before the gather. If `device` is given, the shard is in the memory of the CPU, and each rank copies its shard
    to this device before the gather.
    """
    if shard.is_meta:
        return gathered_metadata(shard, rows, group_name, reshard_after_forward, unsharded, dtype)
    own = shard.to(device or shard.device).to(dtype or shard.dtype).contiguous()
    gathered = FUNCTIONAL.all_gather_into_tensor(own, group_of(group_name).size(), group_name)
    result: torch.Tensor = FUNCTIONAL.wait_tensor(gathered)
    return result.narrow(0, 0, rows).clone() if result.shape[0] != rows else result


@operator("(Tensor(a)[] gradients, Tensor[] shards, ScalarType? dtype) -> Tensor(a)[]")
def take_unreduced_gradients(
    gradients: list[torch.Tensor], shards: list[torch.Tensor], dtype: torch.dtype | None
) -> list[torch.Tensor]:
    """Return the sums of gradients and of their parameters' unreduced gradients, which are removed.

    The sums have the dtype `dtype`; if it is None, gradients keep their own dtype. A backward that does not accumulate,
    such as `torch.autograd.grad`, does not change unreduced gradients.
    """
    results = []
    for gradient, shard in zip(gradients, shards, strict=True):
        unreduced_gradient: Any = None if gradient.is_meta else getattr(shard, UNREDUCED, None)
        has_sum = unreduced_gradient is not None and unreduced_gradient.gradient is not None
        total = unreduced_gradient.take() if has_sum and is_accumulated(shard) else None
        results.append((gradient if dtype is None else gradient.to(dtype)) if total is None else total.add_(gradient))
    return results


@operator("(Tensor gradient, Tensor shard, str group_name, Device? device=None) -> Tensor")
def scatter_gradient(
    gradient: torch.Tensor, shard: torch.Tensor, group_name: str, device: torch.device | None = None
) -> torch.Tensor:
    """Add the unreduced gradient, average the gradients of all ranks, and return the shard of this rank.

    If the shard is offloaded, `device` is the device of the shard, and the result is copied to it.
    """
    size = group_of(group_name).size()
    own = shard_rows(gradient.shape[0], size)
    if gradient.is_meta:
        return gradient.new_empty((own, *gradient.shape[1:]))
    (total,) = take_unreduced_gradients([gradient], [shard], None)
    return reduced_shard(total, group_name).to(gradient.dtype).to(device or gradient.device)


def gathered_metadata(
    shard: torch.Tensor,
    rows: int,
    group_name: str,
    reshard_after_forward: bool,
    unsharded: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return a fake of the result of `gather_parameter`."""
    del group_name, reshard_after_forward, unsharded
    return shard.new_empty((rows, *shard.shape[1:]), dtype=dtype, device=device)


def scattered_metadata(
    gradient: torch.Tensor, shard: torch.Tensor, group_name: str, device: torch.device | None = None
) -> torch.Tensor:
    """Return a fake of the result of `scatter_gradient`."""
    del group_name
    return gradient.new_empty(shard.shape, device=device)


for _name, _metadata in (("gather_parameter", gathered_metadata), ("scatter_gradient", scattered_metadata)):
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _metadata, lib=_library)


def reduced_shard(gradient: torch.Tensor, group_name: str) -> torch.Tensor:
    """Return this rank's rows of the average of the gradients of all ranks."""
    size = group_of(group_name).size()
    own = shard_rows(gradient.shape[0], size)
    padded = pad_rows(gradient, own * size).contiguous()
    shard = FUNCTIONAL.wait_tensor(FUNCTIONAL.reduce_scatter_tensor(padded, "sum", size, group_name))
    result: torch.Tensor = shard * (1 / size)
    return result


@operator("(Tensor(a) tensor, str group_name) -> Tensor(a)", CopyToGroup)
def copy_to_group(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """Return a tensor that is the same on all ranks; the backward sums the gradients of all ranks."""
    return tensor.view_as(tensor)


@operator("(Tensor tensor, str group_name) -> Tensor", ReduceFromGroup)
def reduce_from_group(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """Return the sum of the tensors of all ranks."""
    if tensor.is_meta:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)
    result: torch.Tensor = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(tensor.contiguous(), "sum", group_name))
    return result
