"""Convert values to bytes for other ranks; tensors on a GPU arrive on the GPU of the receiving rank."""

from __future__ import annotations

import io
from typing import Any

import torch


def pack(value: object) -> bytes:
    """Return a picklable value as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(content: bytes, device: torch.device) -> Any:
    """Return a value from the bytes of another rank of this command, with its tensors on the CPU or on this device."""

    def move_to_device(storage: Any, location: str) -> Any:
        return storage if location == "cpu" else storage.to(device=device)

    return torch.load(io.BytesIO(content), map_location=move_to_device, weights_only=False)
