"""Copy models without copying their weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.foundation.errors import NotComparable
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory
from thunder_core.workflow.validation.wide_weights import constant_buffers


@dataclass(frozen=True)
class ModelCopy:
    """A copy of a model, and its copied buffers by the ids of the original buffers.

    `unwritten` are buffers of the copy that a call of eager PyTorch does not change.
    """

    model: torch.nn.Module
    buffers: Mapping[int, torch.Tensor]
    unwritten: Collection[torch.Tensor] = ()


def copy_sharing_parameters(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy that shares parameters and constant buffers; running the copy does not change the model."""
    return copy_sharing(model, by_id(model.parameters())).model


def copy_before_call(model: torch.nn.Module, called: ModelCopy) -> ModelCopy:
    """Return a copy of a model that shares the buffers of another copy, on which a call has run.

    The new copy shares the buffers that the call did not change, so that each exists only once. The copy on which the
    call has run must not be used afterwards.
    """
    unwritten = {
        id(buffer): called.buffers[id(buffer)]
        for buffer in model.buffers()
        if id(buffer) in called.buffers and is_identical(buffer, called.buffers[id(buffer)])
    }
    copied = copy_sharing(model, by_id(model.parameters()) | unwritten)
    return ModelCopy(copied.model, copied.buffers, tuple(unwritten.values()))


def copy_sharing(model: torch.nn.Module, shared: Mapping[int, object]) -> ModelCopy:
    """Return a copy in which the objects with these ids are replaced; constant buffers are shared.

    Raises `NotComparable` for a model that cannot be copied.
    """
    memo = {**constant_buffers(model), **shared, **_copies_of_results(model)}
    try:
        copied = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise NotComparable(
            f"the model cannot be copied ({error}), and validation needs a copy",
            fix="keep locks, generators, open files and lists of earlier results out of the module's attributes during "
            "validation",
        ) from error
    buffers = {id(buffer): memo[id(buffer)] for buffer in model.buffers() if id(buffer) in memo}
    return ModelCopy(copied, buffers)


def by_id(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return tensors by their ids."""
    return {id(tensor): tensor for tensor in tensors}


def is_identical(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a tensor has the shape and the values of another tensor; tensors without data count as equal."""
    if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        return False
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:  # PyTorch does not compare 8-bit floating dtypes
        tensor, value = tensor.view(torch.uint8), value.view(torch.uint8)
    return tensor.is_meta or bool(torch.equal(tensor, value))


def _copies_of_results(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Return detached copies of tensors with a `grad_fn` in modules' attributes, which deepcopy would refuse."""
    values = (value for module in model.modules() for value in vars(module).values())
    return {id(value): value.detach().clone() for value in values if isinstance(value, torch.Tensor) and value.grad_fn}
