"""Device guards: functions whose C++ code makes a tensor's GPU current, which fails in builds without CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in

DEVICE_GUARDED = frozenset(
    {torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.contiguous, torch.Tensor.__invert__}
)


def hidden_device_of(function: Callable[..., Any], arguments: object) -> torch.device | None:
    """Return the GPU that a call of a function must hide, because this build of PyTorch has no CUDA; None without one.

    The guard of a function in `DEVICE_GUARDED` reads a tensor's device to make it current, and autograd reads the
    device of each tensor that it records. Both accept the meta device (`stand_in_for`).
    """
    if torch.cuda._is_compiled():
        return None
    tensors = tensors_in(arguments) if function in DEVICE_GUARDED or torch.is_grad_enabled() else ()
    hides = function in DEVICE_GUARDED or any(tensor.requires_grad for tensor in tensors)
    return next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None) if hides else None
