"""Weights of a model in a wider dtype: all converted at once where that is little, else each while it is read."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from thunder_core.backend.claiming.deferred_tensor import Compute, DeferredTensor, deferred
from thunder_core.backend.quantization.layers import QuantizedLayer

WHOLE = 256 << 20  # bytes of converted weights, up to which all are converted at once
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, DeferredTensor)


def is_converted_at_once(model: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Whether the weights of a model take so little memory in a dtype that a whole copy is made."""
    return bytes_in(model, dtype) <= WHOLE


def bytes_in(model: torch.nn.Module, dtype: torch.dtype) -> int:
    """The bytes of the parameters of a model in a dtype."""
    return dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())


def deferred_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[int, object]:
    """The parameters of a copy of a model whose weights are converted while they are read, by the ids of the model's.

    The weights of packed modules, which compute in the dtype that they had, are the model's own.
    """
    packed = {id(tensor) for module in model.modules() if is_packed(module) for tensor in tensors_held(module)}
    found: dict[int, object] = {}
    for parameter in model.parameters():
        if id(parameter) in packed:
            found[id(parameter)] = parameter
        elif isinstance(wide := deferred(parameter.detach(), conversion_to(dtype)), DeferredTensor):
            found[id(parameter)] = torch.nn.Parameter(wide, parameter.requires_grad)
    return found


@cache
def conversion_to(dtype: torch.dtype) -> Compute:
    """The function that converts a tensor: the same one each time, by which equal conversions are known."""
    return partial(_converted, dtype)


def _converted(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype)


def constant_buffers(model: torch.nn.Module) -> dict[int, Any]:
    """The buffers that no call changes, by their ids: the codes and scales of quantized layers."""
    layers = (module for module in model.modules() if isinstance(module, QuantizedLayer))
    return {id(buffer): buffer for layer in layers for buffer in layer.buffers(recurse=False)}


def convert_in_place(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of a model that are not deferred, but for those of packed modules and constant buffers."""
    constant = constant_buffers(model)
    for tensor in plain_tensors(model):
        if id(tensor) not in constant and not isinstance(tensor, DeferredTensor):
            tensor.data = tensor.data.to(dtype)
    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            module.dtype = dtype


def is_packed(module: torch.nn.Module) -> bool:
    """Whether a module itself holds a tensor of a class that is neither PyTorch's nor a parameter's."""
    return any(type(tensor) not in PLAIN for tensor in tensors_held(module))


def plain_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """The floating parameters and buffers of a model that no module with packed weights holds, each once."""
    packed = {id(tensor) for module in model.modules() if is_packed(module) for tensor in tensors_held(module)}
    held = {id(tensor): tensor for module in model.modules() for tensor in tensors_held(module)}
    return [tensor for number, tensor in held.items() if number not in packed and tensor.is_floating_point()]


def tensors_held(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of a module itself."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
