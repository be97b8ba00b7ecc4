"""Device guards: functions whose C++ code makes a tensor's GPU current, which fails in builds without CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in

NOWHERE = torch.device("meta")  # a device that needs no guard
DEVICE_GUARDED = frozenset(
    {torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.contiguous, torch.Tensor.__invert__}
)


def needs_device_guard(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a function has a device guard that would fail, because this build of PyTorch has no CUDA.

    The guard of a function in `DEVICE_GUARDED` reads a tensor's device to make it current. The guard does nothing if
    the device is `NOWHERE`, and no other code depends on this device.
    """
    if function not in DEVICE_GUARDED or torch.cuda._is_compiled():
        return False
    return any(tensor.device.type == "cuda" for tensor in tensors_in(args))
