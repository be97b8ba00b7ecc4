"""Tensors without data on a GPU that this build of PyTorch cannot use: they hide their device from C++ code.

PyTorch's C++ code makes the GPU of a tensor current, and autograd asks for the current stream of the GPU of each tensor
that it records. Without CUDA, the former raises an error, and the latter ends the process. If C++ code asks for the
device of such a tensor, the answer is therefore a device that stands for the GPU: the meta device with an index that no
program uses, because the meta device of a program has none. A tensor that C++ code creates on this device is then
created on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thunder_core.tracing.ir.tree import replace_leaves

DEVICE_QUERIES = frozenset({torch.ops.prim.device.default})  # the operators by which C++ code asks for a device
META = "meta"  # devices of this type need no guard and have no streams
FIRST_INDEX = 64  # the index of the meta device that stands for the first GPU


def is_on_absent_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor without data is on a GPU, although this build of PyTorch has no CUDA."""
    return tensor.device.type == "cuda" and not torch.cuda._is_compiled()


def stand_in_for(device: torch.device) -> torch.device:
    """Return the device that C++ code gets in place of a GPU."""
    return torch.device(META, FIRST_INDEX + (device.index or 0))


def hide(device: torch.device, arguments: Any) -> Any:
    """Return the arguments of a call with its stand-in in place of a GPU."""
    return replace_leaves(arguments, lambda leaf: stand_in_for(device) if names_device(leaf, device) else leaf)


def restore(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keyword arguments of an operation with the GPU in place of a stand-in for a GPU."""
    device = kwargs.get("device")
    if not isinstance(device, torch.device) or device.type != META or (device.index or 0) < FIRST_INDEX:
        return kwargs
    return {**kwargs, "device": torch.device("cuda", device.index - FIRST_INDEX)}


def names_device(leaf: object, device: torch.device) -> bool:
    """Whether an argument names a device, with its index or without an index."""
    return isinstance(leaf, torch.device | str) and str(leaf) in (str(device), device.type)
