"""The bytes of a model's weights, and the number of bytes above which its memory use is planned."""

from __future__ import annotations

import torch

LARGE_WEIGHT_BYTES = 256 << 20


def weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers; each tensor counts once."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
