"""A model's weights in a wider dtype: small weights are converted at once, large weights when they are read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import torch

from thunder_core.backend.claiming.deferred_tensor import (
    Compute,
    DeferredTensor,
    can_be_deferred,
    defer,
    small_tensors,
)
from thunder_core.backend.quantization.layers import QuantizedLayer

MAX_BYTES_AT_ONCE = 256 << 20  # models with at most this many bytes of weights are converted at once
BASE_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, DeferredTensor)


def is_converted_at_once(model: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Whether a model's weights in a dtype are small enough to convert all of them at once."""
    return bytes_in(model, dtype) <= MAX_BYTES_AT_ONCE


def bytes_in(model: torch.nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of a model's parameters in a dtype."""
    return dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())


def deferred_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[int, object]:
    """Return parameters that are converted when they are read, by the ids of the model's parameters.

    Weights of packed modules are the model's own, because these modules compute in their original dtype.
    """
    packed, small = packed_tensor_ids(model), small_weights(model, dtype)
    parameters: dict[int, object] = {}
    for parameter in model.parameters():
        if id(parameter) in packed:
            parameters[id(parameter)] = parameter
        elif id(parameter) not in small:
            wide = defer(parameter.detach(), conversion_to(dtype), at_once=False)
            if isinstance(wide, DeferredTensor):
                parameters[id(parameter)] = torch.nn.Parameter(wide, parameter.requires_grad)
    return parameters


def deferred_buffers(
    model: torch.nn.Module, buffers: Iterable[torch.Tensor], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """Return the large buffers of a model, by their ids, as buffers that are converted when they are read.

    A write to such a buffer raises an error. The values of integer buffers are not changed. Constant buffers and
    buffers of packed modules are left out, because they are not converted.
    """
    unconverted = packed_tensor_ids(model) | constant_buffers(model).keys()
    plain = [buffer for buffer in buffers if can_be_deferred(buffer) and id(buffer) not in unconverted]
    small = small_tensors({id(buffer): converted_bytes(buffer, dtype) for buffer in plain})
    return {id(buffer): DeferredTensor(buffer, conversion_to(dtype)) for buffer in plain if id(buffer) not in small}


def converted_bytes(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the bytes of a tensor after conversion to a dtype; only floating tensors are converted."""
    return tensor.numel() * dtype.itemsize if tensor.is_floating_point() else tensor.nbytes


def small_weights(model: torch.nn.Module, dtype: torch.dtype) -> frozenset[int]:
    """Return the ids of the small parameters, which together are small enough to be converted at once."""
    return small_tensors({id(parameter): parameter.numel() * dtype.itemsize for parameter in model.parameters()})


@cache
def conversion_to(dtype: torch.dtype) -> Compute:
    """Return the function that converts tensors to a dtype; for equal dtypes, it is the same object."""
    return partial(convert_tensor, dtype=dtype)


def convert_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a floating tensor to a dtype, and a complex tensor to the matching complex dtype.

    Others are unchanged.
    """
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def constant_buffers(model: torch.nn.Module) -> dict[int, Any]:
    """Return the buffers that no call changes, by id: the codes and scales of quantized layers."""
    layers = (module for module in model.modules() if isinstance(module, QuantizedLayer))
    return {id(buffer): buffer for layer in layers for buffer in layer.buffers(recurse=False)}


def convert_in_place(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Convert a model's weights, except deferred weights, weights of packed modules, and constant buffers."""
    constant = constant_buffers(model)
    for tensor in plain_tensors(model):
        if id(tensor) not in constant and not isinstance(tensor, DeferredTensor):
            tensor.data = convert_tensor(tensor.data, dtype)
    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            module.dtype = dtype


def is_packed(module: torch.nn.Module) -> bool:
    """Whether a module itself has a tensor of a class other than PyTorch's own classes and `DeferredTensor`."""
    return any(type(tensor) not in BASE_TENSOR_CLASSES for tensor in tensors_held(module))


def packed_tensor_ids(model: torch.nn.Module) -> set[int]:
    """Return the ids of the parameters and buffers of packed modules."""
    return {id(tensor) for module in model.modules() if is_packed(module) for tensor in tensors_held(module)}


def plain_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers of a model, without duplicates, and without packed modules."""
    packed = packed_tensor_ids(model)
    tensors = {id(tensor): tensor for module in model.modules() for tensor in tensors_held(module)}
    return [tensor for number, tensor in tensors.items() if number not in packed]


def tensors_held(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers of a module without its children."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
