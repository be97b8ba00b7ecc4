"""Calls that give or take what a tensor's memory is: legacy `new` with a size, and storages, which lie on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.storage import TypedStorage, _dtype_to_storage_type_map

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def with_named_size(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call, those of `Tensor.new` with the size by its name.

    Traces write a `torch.Size` as a tuple, which `Tensor.new` would take for the data of the new tensor.
    """
    if function is not torch.Tensor.new or len(args) != 2 or type(args[1]) is not torch.Size:
        return args, kwargs
    return args[:1], {**kwargs, "size": tuple(args[1])}


def mark_device(storage: Any, device: torch.device) -> None:
    """Note on which device the storage of a tensor without data is taken to be."""
    untyped = storage._untyped_storage if isinstance(storage, TypedStorage) else storage
    if isinstance(untyped, torch.UntypedStorage) and untyped.device.type == "meta":
        untyped._fake_device = device


def shown_device(owner: Any, name: str) -> torch.device | None:
    """The device that the program is shown as a storage's attribute `name`; None for every other attribute."""
    return owner._fake_device if name == "device" and isinstance(owner, torch.UntypedStorage) else None


def storage_class(tensor: torch.Tensor) -> type | None:
    """The class that `Tensor.storage_type` gives: that of PyTorch's older storages for a dtype on a device, if any."""
    module = torch if tensor.device.type == "cpu" else getattr(torch, tensor.device.type, None)
    name = _dtype_to_storage_type_map().get(tensor.dtype, "")
    return getattr(module, name, None)
