"""Tensors with metadata and no data, one for each real tensor that the program meets."""

from __future__ import annotations

from typing import Any

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


SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is dense or sparse, and neither its class nor a transform of functorch changes it."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout in (torch.strided, *SPARSE)
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class Storages:
    """For the storage of each real tensor one without data, so that fakes share memory where their tensors do."""

    def __init__(self) -> None:
        self._known: dict[int, torch.UntypedStorage] = {}

    def like(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The storage without data that stands for a real one."""
        known = self._known.get(storage._cdata)
        if known is None:
            size = storage.nbytes()
            known = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
            self._known[storage._cdata] = known
        return known


def fake_of(
    tensor: torch.Tensor, mode: FakeTensorMode, storages: Storages, device: torch.device | None = None
) -> torch.Tensor:
    """A fake tensor with the metadata of a real one, on its device or another, as much a leaf of autograd as that.

    Sizes, strides and the place in a storage are kept. (FakeTensorMode.from_tensor does the same ten times slower: it
    also keeps the tensors that a view is a view of.)
    """
    if not is_plain(tensor):
        raise OperationFailed(
            f"a {type(tensor).__name__} with layout {tensor.layout} cannot be traced, nor any tensor inside vmap",
            fix="convert it to a dense torch.Tensor before the call, and keep torch.func's transforms uncompiled",
        )
    if tensor.layout in SPARSE:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        storage = storages.like(tensor.untyped_storage())
        meta.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        fake = FakeTensor(mode, meta, device or tensor.device)
        if not tensor.requires_grad:
            return fake
        return fake.requires_grad_(True) if tensor.is_leaf else _followed(fake)


def _followed(fake: torch.Tensor) -> torch.Tensor:
    """The same fake as autograd's result of something outside, which may be written to."""
    with torch.enable_grad():
        source = torch.empty(0, device="meta", requires_grad=True)
        result: torch.Tensor = _FromOutside.apply(source, fake)  # type: ignore[no-untyped-call]
        return result


class _FromOutside(torch.autograd.Function):
    """What made a tensor before the program began."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("tracing computes no gradients")


FROM_OUTSIDE: type = _FromOutside._backward_cls


def fake_like(proxy: TensorProxy, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor with a proxy's metadata, in memory of its own; autograd does not follow it."""
    with _disable_current_modes():
        meta = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device="meta")
        return FakeTensor(mode, meta, proxy.device)
