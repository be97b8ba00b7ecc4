"""Proxies: the names of a trace, each with what is known of the value that it will stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._dtype_abbrs import dtype_abbrs


@dataclass(frozen=True)
class Proxy:
    """A name in a trace that stands for any Python object."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def described(self) -> str:
        """A comment on the value; empty when nothing is known of it."""
        return ""


@dataclass(frozen=True)
class TensorProxy(Proxy):
    """A name that stands for a tensor with this metadata; sizes and strides are in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    @property
    def described(self) -> str:
        """For example `f32[2, 128, 64]`, with the device where it is not the CPU."""
        device = "" if self.device.type == "cpu" else f" {self.device}"
        return f"{dtype_abbrs.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.shape))}]{device}"

    def named(self, name: str) -> TensorProxy:
        """A proxy with this one's metadata and another name."""
        return TensorProxy(name, self.shape, self.stride, self.dtype, self.device, self.requires_grad)

    @property
    def bytes(self) -> int:
        """The bytes that a dense tensor of this shape takes."""
        elements = 1
        for size in self.shape:
            elements *= size
        return elements * self.dtype.itemsize


def tensor_proxy(name: str, tensor: torch.Tensor) -> TensorProxy:
    """The proxy of that name with the tensor's metadata."""
    strided = tensor.layout is torch.strided
    return TensorProxy(
        name=name,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()) if strided else (),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
    )
