"""Copies of tensors that keep shared memory shared, and the rules for tensors that are not copied."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, small_tensors

Values = dict[str, Any]


def reason_not_copied(value: object) -> str | None:
    """Return the reason why an input cannot be copied for a second computation; None if it can."""
    if isinstance(value, torch.Generator):
        return "it takes a random number generator"
    if isinstance(value, torch.Tensor):
        kind = type(value)
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return f"it takes a tensor of class {kind.__name__}"
        if value.layout is not torch.strided or value.is_quantized:
            return f"it takes a tensor of layout {value.layout}"
    return None


def copy_values(values: Values) -> Values:
    """Return values with all tensors copied; copies share memory with each other if their originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    return {name: _copy(value, storages) for name, value in values.items()}


def _copy(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, DeferredTensor):
        return value
    value = value.detach()
    storage = value.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    copy.set_(storages[storage._cdata], value.storage_offset(), value.shape, value.stride())
    copy = copy.conj() if value.is_conj() else copy
    return copy._neg_view() if value.is_neg() else copy


def shares_memory(first: object, second: object) -> bool:
    """Whether two values are strided tensors in one storage."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if not first.layout is second.layout is torch.strided:
        return False
    return bool(first.numel() and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())


def large_names(values: Values) -> list[str]:
    """Return the names of the tensors, such as weights, whose copies would take much memory."""
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    plain = {name: tensor for name, tensor in tensors.items() if reason_not_copied(tensor) is None}
    small = small_tensors({name: tensor.nbytes for name, tensor in plain.items()})
    return [name for name in plain if name not in small]
