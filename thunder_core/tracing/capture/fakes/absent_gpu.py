"""Tensors without data on a GPU that this build of PyTorch cannot use: they hide their device from C++ code.

PyTorch's C++ code makes the GPU of a tensor current, and autograd asks for the current stream of the GPU of each tensor
that it records. Without CUDA, the former raises an error, and the latter ends the process. If C++ code asks for the
device of such a tensor, the answer is therefore the device `NOWHERE`. A tensor that C++ code creates on this device is
then created on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thunder_core.tracing.ir.tree import replace_leaves

DEVICE_QUERIES = frozenset({torch.ops.prim.device.default})  # the operators by which C++ code asks for a device
NOWHERE = torch.device("meta")  # a device that needs no guard and has no streams


def is_on_absent_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor without data is on a GPU, although this build of PyTorch has no CUDA."""
    return tensor.device.type == "cuda" and not torch.cuda._is_compiled()


def hide(device: torch.device, arguments: Any) -> Any:
    """Return the arguments of a call with `NOWHERE` in place of a device."""
    return replace_leaves(arguments, lambda leaf: NOWHERE if names_device(leaf, device) else leaf)


def restore(device: torch.device | None, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keyword arguments of an operation with a device, if there is one, in place of `NOWHERE`."""
    is_hidden = device is not None and kwargs.get("device") == NOWHERE
    return {**kwargs, "device": device} if is_hidden else kwargs


def names_device(leaf: object, device: torch.device) -> bool:
    """Whether an argument names a device, with its index or without an index."""
    return isinstance(leaf, torch.device | str) and str(leaf) in (str(device), device.type)
