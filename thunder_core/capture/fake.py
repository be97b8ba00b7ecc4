"""Tensors with metadata and no data, one for each real tensor that the program meets."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.errors import OperationFailed
from thunder_core.ir.proxy import TensorProxy


def new_mode() -> FakeTensorMode:
    """A mode in which operations compute metadata alone, and constants are propagated."""
    return FakeTensorMode(allow_non_fake_inputs=False)


def empty(proxy: TensorProxy) -> torch.Tensor:
    """A tensor with the metadata of a proxy, without data where a mode sees to that."""
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is dense, and neither its class nor a transform of functorch changes what it does."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode, device: torch.device | None = None) -> torch.Tensor:
    """A fake tensor with the metadata of a real one, on its device or another; a leaf of autograd where that is one.

    Sizes and strides are kept. (FakeTensorMode.from_tensor does the same ten times slower: it also keeps views of
    one storage together, which a program without writes through views cannot tell.)
    """
    if not is_plain(tensor):
        raise OperationFailed(
            f"a {type(tensor).__name__} with layout {tensor.layout} cannot be traced, nor any tensor inside vmap",
            fix="convert it to a dense torch.Tensor before the call, and keep torch.func's transforms uncompiled",
        )
    with _disable_current_modes():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = FakeTensor(mode, meta, device or tensor.device)
        return fake.requires_grad_(True) if tensor.requires_grad else fake
