"""Device guards: functions whose C++ makes a tensor's GPU current, which fails where PyTorch was built without CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.capture.tensors import tensors_in

NOWHERE = torch.device("meta")
DEVICE_GUARDED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.contiguous})


def needs_device_guard(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a tensor is on a GPU and this build of PyTorch knows none.

    The device guard of those in `DEVICE_GUARDED` then fails as it makes the GPU current, unless it is told that the
    tensor is on no device, which is all that it asks for.
    """
    if function not in DEVICE_GUARDED or torch.cuda._is_compiled():
        return False
    return any(tensor.device.type == "cuda" for tensor in tensors_in(args))
