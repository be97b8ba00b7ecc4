"""The devices that a model can run on."""

from __future__ import annotations

import torch

from thunder_core.foundation.errors import DeviceNotAvailable
from thunder_core.workflow.models.request.names import spelled_device


def parse_device(name: str) -> torch.device:
    """Return the device with a name; raise `UnknownName` if it is invalid, `DeviceNotAvailable` if it is missing."""
    device = named_device(name)
    if device.type == "cuda":
        require_cuda(device)
    return device


def named_device(name: str) -> torch.device:
    """Return the device with a name, even if this machine lacks the device; raise `UnknownName` for an invalid name."""
    return torch.device(spelled_device(name))


def best_device() -> torch.device:
    """Return the current GPU if PyTorch can use it, otherwise the CPU."""
    gpu = torch.device("cuda")
    return gpu if is_available(gpu) else torch.device("cpu")


def is_available(device: torch.device) -> bool:
    """Whether PyTorch can use a device."""
    try:
        if device.type == "cuda":
            require_cuda(device)
    except DeviceNotAvailable:
        return False
    return True


def require_cuda(device: torch.device) -> None:
    """Raise `DeviceNotAvailable` unless PyTorch can use a GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceNotAvailable(
            f"{device} was requested, but this build of PyTorch ({torch.__version__}) has no CUDA",
            fix="use --device cpu, or install a CUDA build of PyTorch",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise DeviceNotAvailable(
            f"{device} was requested, but PyTorch finds no GPU",
            fix="use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES (`thunder doctor` shows details)",
        )
    if (device.index or 0) >= count:
        raise DeviceNotAvailable(
            f"{device} was requested, but PyTorch finds {count} GPU{'s' if count > 1 else ''}",
            fix=f"use cuda:0{f' to cuda:{count - 1}' if count > 1 else ''}",
        )
