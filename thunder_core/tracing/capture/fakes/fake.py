"""Fake tensors: tensors with metadata and no data, one for each real tensor that the program uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.capture.fakes.faithful import FaithfulMode
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tracked_from_outside
from thunder_core.tracing.capture.torch_facts.wrappers import Wrapped, is_wrapper
from thunder_core.tracing.ir.proxy import TensorProxy


def new_mode(environment: ShapeEnv | None = None, *, estimates_sizes: bool = False) -> FaithfulMode:
    """Return a mode in which operations compute only metadata, and constants are propagated.

    `estimates_sizes` gives an upper bound to sizes that depend on values, in results that only a backward reads.
    """
    mode = FaithfulMode(allow_non_fake_inputs=False, shape_env=environment)
    mode.estimates_sizes = estimates_sizes
    return mode


def empty(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor with the metadata of a proxy, without data if a fake mode is active."""
    tensor = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
    return mark(tensor, is_conj=proxy.is_conj, is_neg=proxy.is_neg)


def mark(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> torch.Tensor:
    """Set the conjugate bit and the negative bit of a new tensor, and return the tensor."""
    if is_conj:
        torch._C._set_conj(tensor, True)
    if is_neg:
        torch._C._set_neg(tensor, True)
    return tensor


Layout = tuple[Sequence[Any], Sequence[Any]]  # sizes and strides
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Uninitialized(OperationFailed):
    """The program uses a parameter that has no shape yet; it must run in eager PyTorch first, which sets the shape."""

    runs_in_eager = False


def handle_of(fake: torch.Tensor, kind: type) -> torch.Tensor:
    """Return a tensor of a subclass, without data, that the program holds instead of a fake.

    Unlike the fake, this tensor has the attributes and methods of the subclass.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        handle: torch.Tensor = torch.Tensor._make_subclass(kind, torch.empty(0, device="meta"), False)
    return handle


def require_traceable(tensor: torch.Tensor) -> None:
    """Raise `OperationFailed`, with the reason, if no fake can represent the tensor."""
    if is_wrapper(tensor):
        raise Wrapped("a tensor that wraps others cannot be traced", fix="leave the part that uses it uncompiled")
    for is_met, what, fix in OBSTACLES:
        if is_met(tensor):
            shown = type(tensor).__name__
            raise (Uninitialized if is_met is torch.nn.parameter.is_lazy else OperationFailed)(
                what.format(kind=shown, layout=getattr(tensor, "layout", "")), fix=fix
            )


def dispatches(tensor: torch.Tensor) -> bool:
    """Whether a tensor's class has its own `__torch_dispatch__`."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


OBSTACLES: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (
        torch.nn.parameter.is_lazy,
        "the program uses a parameter or buffer that has no shape yet (of a lazy module), which cannot be traced",
        "run the module once on an input before you compile it, so that its shapes are known",
    ),
    (
        torch._C._functorch.is_functorch_wrapped_tensor,
        "a tensor inside a transform of torch.func (vmap, grad, jvp) that was called from outside cannot be traced",
        "call the transform inside the compiled program, or keep the function that it calls uncompiled",
    ),
    (
        lambda tensor: tensor.is_nested,
        "a nested tensor ({layout}) cannot be traced",
        "pass `values()` and `offsets()`, or `to_padded_tensor(0.0)`, or keep the part that uses it uncompiled",
    ),
    (
        lambda tensor: tensor.is_quantized,
        "a tensor with a quantized dtype (`torch.qint8` and similar) cannot be traced",
        "pass `x.dequantize()`, or quantize the model by a recipe of Thunder or by torchao",
    ),
    (
        dispatches,
        "a tensor of class {kind} cannot be traced: the `__torch_dispatch__` of this class defines its operations",
        "leave the part that uses it uncompiled, or pass the inner tensor (dequantized, or to_local())",
    ),
    (
        lambda tensor: tensor.layout is not torch.strided and tensor.layout not in SPARSE,
        "a tensor of class {kind} with layout {layout} cannot be traced",
        "convert it to a dense torch.Tensor before the call",
    ),
)


class FakeStorages:
    """The data-free storages of real tensors, so that fakes share memory if their tensors do."""

    def __init__(self) -> None:
        self._known: dict[int, torch.UntypedStorage] = {}

    def like(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the data-free storage that represents a real storage."""
        meta_storage = self._known.get(storage._cdata)
        if meta_storage is None:
            size = storage.nbytes()
            meta_storage = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
            self._known[storage._cdata] = meta_storage
        return meta_storage


def fake_of(
    tensor: torch.Tensor,
    mode: FaithfulMode,
    storages: FakeStorages,
    device: torch.device | None = None,
    layout: Layout | None = None,
) -> torch.Tensor:
    """Return a fake tensor with the metadata of a real one, on its device or another, with the same `is_leaf`.

    Sizes, strides, storage offset and version are kept. (FakeTensorMode.from_tensor is ten times slower, because it
    also keeps the bases of views.) If the program first uses the tensor in inference mode, the fake is made outside of
    it. The fake of an ordinary tensor would otherwise be an inference tensor, which autograd does not track.
    """
    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):
            return fake_of(tensor, mode, storages, device, layout)
    is_plain_leaf = tensor.layout is torch.strided and layout is None and tensor.is_leaf
    if is_plain_leaf and torch._C._functorch.peek_interpreter_stack() is None:
        with torch._C.DisableTorchFunction(), no_dispatch():  # takes a quarter of the time
            return _strided_fake(tensor, mode, storages, device or tensor.device, layout)
    with torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        if tensor.layout in SPARSE:
            require_traceable(tensor)
            return mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)
        return _strided_fake(tensor, mode, storages, device or tensor.device, layout)


def _strided_fake(
    tensor: torch.Tensor, mode: FaithfulMode, storages: FakeStorages, device: torch.device, layout: Layout | None
) -> torch.Tensor:
    require_traceable(tensor)
    if layout is None:
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        storage = storages.like(tensor.untyped_storage())
        meta.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    else:
        meta = strided_tensor(int(tensor.storage_offset()), *layout, tensor.dtype)
    fake = mark(mode.fake(meta, device), is_conj=tensor.is_conj(), is_neg=tensor.is_neg())
    if tensor.requires_grad:
        fake = fake.requires_grad_(True) if tensor.is_leaf else tracked_from_outside(fake)
    if not (tensor.is_inference() or fake.is_inference()):  # inference tensors have no versions
        torch._C._autograd._unsafe_set_version_counter((fake,), (tensor._version,))
    return fake


def strided_tensor(offset: int, shape: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a data-free tensor with this storage offset, in a minimal storage; sizes and strides may be symbolic."""
    if not offset:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty(offset + length, dtype=dtype, device="meta")
    return memory.as_strided(shape, strides, offset).detach()


def fake_like(proxy: TensorProxy, mode: FaithfulMode) -> torch.Tensor:
    """Return a fake tensor with a proxy's metadata and its own memory, which autograd does not track."""
    with _disable_current_modes():
        meta = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device="meta")
        return mark(mode.fake(meta, proxy.device), is_conj=proxy.is_conj, is_neg=proxy.is_neg)
