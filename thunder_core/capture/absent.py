"""A GPU that this build of PyTorch does not know: functions whose C++ fails as it makes it current."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.capture.tensors import tensors_in

NOWHERE = torch.device("meta")
GUARDED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.contiguous})


def is_unguarded(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a tensor is on a GPU and this build of PyTorch knows none.

    The C++ of the functions in `GUARDED` then fails as it makes the GPU current, unless it is told that the tensor is
    on no device, which is all that it asks for.
    """
    if function not in GUARDED or torch.cuda._is_compiled():
        return False
    return any(tensor.device.type == "cuda" for tensor in tensors_in(args))
