"""Calls that involve a tensor's memory: legacy `new` with a size, and storages, which have a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.storage import TypedStorage, _dtype_to_storage_type_map

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def with_named_size(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call, with the size of `Tensor.new` as a keyword.

    Traces contain a `torch.Size` as a tuple, which `Tensor.new` would take for the data of the new tensor.
    """
    if function is not torch.Tensor.new or len(args) != 2 or type(args[1]) is not torch.Size:
        return args, kwargs
    return args[:1], {**kwargs, "size": tuple(args[1])}


def mark_device(storage: object, device: torch.device) -> None:
    """Record the device that the storage of a fake tensor represents."""
    untyped = storage._untyped_storage if isinstance(storage, TypedStorage) else storage
    if isinstance(untyped, torch.UntypedStorage) and untyped.device.type == "meta":
        untyped._fake_device = device


def shown_device(owner: object) -> torch.device | None:
    """Return the device that the program sees as the device of a storage; None for other objects."""
    return owner._fake_device if isinstance(owner, torch.UntypedStorage) else None


def storage_class(tensor: torch.Tensor) -> type | None:
    """Return the result of `Tensor.storage_type`: PyTorch's legacy storage class for a dtype and device, or None."""
    module = torch if tensor.device.type == "cpu" else getattr(torch, tensor.device.type, None)
    name = _dtype_to_storage_type_map().get(tensor.dtype, "")
    return getattr(module, name, None)
