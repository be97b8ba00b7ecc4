"""Groups of tensors by device and dtype, for optimizers. PyTorch's C++ code would see the device `meta` of fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun

GROUP: Any = torch._C._group_tensors_by_device_and_dtype
Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]


@lookaside(GROUP)
def group_tensors(
    run: TracedRun, /, tensorlistlist: Sequence[Sequence[torch.Tensor | None]], with_indices: bool = False
) -> Groups:
    """Group lists of tensors by device and dtype of the tensors in the first list, in PyTorch's order."""
    facts = [[tensor if tensor is None else (tensor.device, tensor.dtype) for tensor in row] for row in tensorlistlist]
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        groups = GROUP([[fact and stand_in(*fact) for fact in row] for row in facts], True)
    members: dict[Any, list[int]] = {}
    for _, indices in groups.values():
        for index in indices:
            members.setdefault(facts[0][index], []).append(index)
    return {
        key: (
            [[row[index] for index in indices] if row else [] for row in tensorlistlist],
            indices if with_indices else [],
        )
        for key, indices in members.items()
    }


def stand_in(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor that PyTorch groups in place of a tensor with this device and dtype.

    The device `meta` replaces all devices but the CPU, so that no other device is required. The caller splits such
    groups by device.
    """
    return torch.empty(0, dtype=dtype, device="cpu" if device.type == "cpu" else "meta")
