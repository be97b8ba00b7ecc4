"""Copies of tensors by Python's `copy` and `copy.deepcopy`, which access the memory of the tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.codegen.rebuilding import attributes_of_tensor
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.functions.tensors import cast
from thunder_core.frontend.acquire.run.shown_classes import shown_class
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.fakes.fake import SPARSE
from thunder_core.tracing.capture.torch_facts.graph import memory_of

DEEPCOPY: Any = torch.Tensor.__deepcopy__


@lookaside(DEEPCOPY)
def copy_deeply(run: TracedRun, /, tensor: torch.Tensor, memo: dict[Any, Any]) -> Any:
    """Copy a leaf with its memory, gradient and attributes. Copies share memory like their originals."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        return DEEPCOPY(tensor, memo)  # raises eager's error
    require_copyable(shown_class(tensor) or type(tensor))
    copied_tensor = with_class_of_original(run, copy_tensor(run, tensor, memo), tensor)
    if tensor.grad is not None:
        copied_tensor.grad = copy_deeply(run, tensor.grad, memo)
    for name, value in attributes_of_tensor(tensor).items():
        setattr(copied_tensor, name, run.machine.call(copy.deepcopy, value, memo))
    memo[id(tensor)] = copied_tensor
    return copied_tensor


def require_copyable(kind: type) -> None:
    """Raise eager's error for a subclass that PyTorch does not know how to copy."""
    if kind is not torch.Tensor:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            DEEPCOPY(torch.empty(0).as_subclass(kind), {})


def copy_tensor(run: TracedRun, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Copy the values of a tensor to new memory. As in PyTorch, `memo` maps each storage to one copy."""
    plain = tensor.detach()
    if plain.layout in SPARSE or plain.device.type == "meta":
        return plain.clone()
    with torch._C.DisableTorchFunction():
        fake = run.recorder.tensors.fake(tensor)
        key, bytes_of_all = memory_of(fake), fake.untyped_storage().nbytes()
    copies = memo.setdefault("torch", {})
    if key not in copies:
        copies[key] = plain.as_strided((bytes_of_all // plain.element_size(),), (1,), 0).clone()
    copied_storage: torch.Tensor = copies[key]
    copied_storage = copied_storage if copied_storage.dtype == plain.dtype else copied_storage.view(plain.dtype)
    return copied_storage.as_strided(plain.size(), plain.stride(), plain.storage_offset())


def with_class_of_original(run: TracedRun, copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Give a copy the class and the `requires_grad` of the original tensor."""
    copy = copy.requires_grad_() if tensor.requires_grad else copy
    return cast(run, copy, shown_class(tensor) or type(tensor))


@lookaside(torch.Tensor.__reduce_ex__)
def copy_shallowly(run: TracedRun, /, tensor: torch.Tensor, protocol: object) -> tuple[Any, ...]:
    """Return the function and arguments with which `copy.copy` makes a leaf that shares memory and attributes."""

    def rebuild(tensor: torch.Tensor) -> torch.Tensor:
        rebuilt = with_class_of_original(run, tensor.detach(), tensor)
        for name, value in attributes_of_tensor(tensor).items():
            setattr(rebuilt, name, value)
        return rebuilt

    return rebuild, (tensor,)
