"""Metadata of operations from their kernels for the meta device alone, without PyTorch's dispatch of fake tensors.

PyTorch's dispatch of one operation on fake tensors takes 0.3 to 1 ms more than the kernel, and some kernels are
references in Python that run many operations: those of layer norm, batch norm, and GELU take 0.5 to 2 ms. This module
calls the kernel alone where the dispatch would call the same kernel, and replaces such references. The strides are
corrected afterwards, as for all operations (`torch_facts/layouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from thunder_core.tracing.capture.torch_facts.layouts import tensors_of

aten = torch.ops.aten
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Shapes = tuple[Sequence[int], ...]

VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.as_strided.default),
    *(aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.slice.Tensor),
    *(aten.unfold.default, aten.diagonal.default, aten.alias.default, aten.detach.default),
)
UNARY = ("neg", "cos", "sin", "exp", "tanh", "sigmoid", "silu", "rsqrt", "sqrt", "bitwise_not", "clone", "log", "erf")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = ("add", "sub", "mul", "div", "bitwise_and", "bitwise_or", *COMPARISONS)
PRODUCTS: Mapping[object, Any] = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}
# Operations on tensors of the same dtype. The kernel derives the dtype of the result from it.
OF_ONE_DTYPE = frozenset({*VIEWS, *PRODUCTS, *PRODUCTS.values()}).union(
    (getattr(aten, name).default for name in UNARY),
    (getattr(aten, name).Tensor for name in BINARY),
    (getattr(aten, name).Scalar for name in COMPARISONS),
    (aten._softmax.default, aten._log_softmax.default, aten.sum.dim_IntList, aten.mean.dim, aten.amax.default),
    (aten.cat.default, aten.stack.default, aten.constant_pad_nd.default, aten.pow.Tensor_Scalar, aten.sum.default),
    (aten.minimum.default, aten.maximum.default, aten.cumsum.default, aten.abs.default, aten.all.default),
    (aten._to_copy.default, aten.roll.default, aten.repeat.default, aten.linalg_vector_norm.default),
    (aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_ones.default),
    (aten._scaled_dot_product_flash_attention_for_cpu.default,),
)
# Operations on tensors of different dtypes, such as values and indices.
OF_SEVERAL_DTYPES = frozenset(
    {aten.embedding.default, aten.where.self, aten.masked_fill.Scalar, aten.gather.default, aten.index.Tensor}
)
CREATIONS = frozenset(
    {
        *(aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default, aten.ones.default),
        *(aten.full.default, aten.scalar_tensor.default),
    }
)
IN_META_KERNELS = OF_ONE_DTYPE | OF_SEVERAL_DTYPES
# Pointwise operations with numbers as parameters. For floating-point tensors, the result has the metadata of `neg`.
LIKE_NEGATION = frozenset(
    getattr(aten, name).default
    for name in ("gelu", "hardtanh", "clamp", "clamp_min", "clamp_max", "relu", "hardswish", "leaky_relu", "elu")
)
CPU = torch.device("cpu")
PRECISE = (torch.float32, torch.float64)  # for these dtypes, the statistics of a norm have the dtype of its input


def cheaper_operation(func: Any, args: Arguments, kwargs: Keywords) -> tuple[Any, Arguments, Keywords]:
    """Return an operation whose result has the same metadata, and which is computed faster, or the operation itself."""
    if func in LIKE_NEGATION and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
        return aten.neg.default, args[:1], {}
    return func, args, kwargs


def results_on_meta(
    mode: FakeTensorMode, func: Any, args: Arguments, kwargs: Keywords
) -> tuple[Any, torch.device] | None:
    """Return the results of an operation on the meta device, and the device of the results.

    Return None if PyTorch's dispatch may return other metadata.
    """
    if func not in QUICK:
        return None
    tensors = tensors_of(args, {})
    if func in SHAPES:
        shapes = SHAPES[func](*args) if has_known_shapes(mode, args, kwargs, tensors) else None
        return None if shapes is None else (tensors_on_meta(shapes, args[0].dtype), args[0].device)
    device = device_of_results(mode, func, kwargs, tensors)
    if device is None:
        return None
    with in_kernel_invocation_manager(mode):  # fakes are tensors on the meta device
        return call_meta_kernel(func, args, kwargs), device


def device_of_results(
    mode: FakeTensorMode, func: Any, kwargs: Keywords, tensors: Sequence[torch.Tensor]
) -> torch.device | None:
    """Return the device of the results of an operation that is not in `SHAPES`.

    Return None unless all tensors are plain fakes of the mode on one device: for others, PyTorch's dispatch may do more
    than call the kernel for the meta device.
    """
    if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
        return None
    if func in CREATIONS:
        return CPU if kwargs.get("device") in (None, CPU) else None
    if not tensors or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return None
    is_quick = (
        all(is_plain(tensor, mode) for tensor in tensors)
        and {tensor.device for tensor in tensors} | {kwargs.get("device") or tensors[0].device} == {tensors[0].device}
        and not (func is aten.index.Tensor and has_mask(tensors[1:]))
        and (func in OF_SEVERAL_DTYPES or len({tensor.dtype for tensor in tensors}) == 1)
    )
    return tensors[0].device if is_quick else None


def is_plain(tensor: torch.Tensor, mode: FakeTensorMode) -> bool:
    """Whether a tensor is a strided fake of a mode, without a known value and without a conjugate or negative bit."""
    return (
        type(tensor) is FakeTensor
        and tensor.fake_mode is mode
        and tensor.constant is None
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
    )


def has_mask(indices: Sequence[torch.Tensor]) -> bool:
    """Whether an index is a mask, so that the size of the result depends on its values."""
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def call_meta_kernel(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Return the results of an operation on the meta device."""
    if func in PRODUCTS and not kwargs:  # the sum has no C++ code for the meta device
        meta = PRODUCTS[func](*args[1:3])
        args[0].expand(meta.shape)
        return meta
    return func(*args, **(kwargs | {"device": "meta"} if func in CREATIONS or "device" in kwargs else kwargs))


def has_known_shapes(mode: FakeTensorMode, args: Arguments, kwargs: Keywords, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the operands of an operation in `SHAPES` are plain fakes of one dtype, which the results have too."""
    return (
        not kwargs
        and isinstance(args[0], torch.Tensor)
        and all(is_plain(tensor, mode) and tensor.device.type == "cpu" for tensor in tensors)
        and {tensor.dtype for tensor in tensors} <= {args[0].dtype}
        and args[0].dtype in PRECISE
    )


def tensors_on_meta(shapes: Shapes, dtype: torch.dtype) -> Any:
    """Return a tensor on the meta device for a single shape, and a tuple of tensors for several."""
    metas = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    return metas if len(metas) > 1 else metas[0]


# The next functions return the shapes of results. They return None for operands for which PyTorch raises an error.


def layer_norm(
    tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, _eps: float
) -> Shapes | None:
    """Return the shapes of the normalized tensor, the means and the reciprocal deviations (layer_norm.cpp)."""
    normalized = [tensor.shape[-len(shape) :], *(operand.shape for operand in (weight, bias) if operand is not None)]
    if not 0 < len(shape) <= tensor.dim() or any(tuple(shape) != tuple(found) for found in normalized):
        return None
    statistics = (*tensor.shape[: -len(shape)], *(1 for _ in shape))
    return tensor.shape, statistics, statistics


def batch_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    *_: float,
) -> Shapes | None:
    """Return the shapes of the normalized tensor and of the saved statistics (Normalization.cpp).

    The statistics are empty without training.
    """
    operands = [operand for operand in (weight, bias, mean, variance) if operand is not None]
    if tensor.dim() < 2 or any(operand.shape != tensor.shape[1:2] for operand in operands):
        return None
    statistics = (tensor.shape[1] if training else 0,)
    return tensor.shape, statistics, statistics


def group_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    _eps: float,
) -> Shapes | None:
    """Return the shapes of the normalized tensor, the means and the reciprocal deviations (group_norm.cpp)."""
    fits = (
        tensor.shape[:2] == (batch, channels)
        and tensor.numel() == batch * channels * size
        and groups > 0
        and channels % groups == 0
        and all(operand.shape == (channels,) for operand in (weight, bias) if operand is not None)
    )
    return (tensor.shape, (batch, groups), (batch, groups)) if fits else None


def grid_sampler_2d(tensor: torch.Tensor, grid: torch.Tensor, *_: object) -> Shapes | None:
    """Return the shape of the samples of an image at the points of a grid (GridSampler.cpp)."""
    fits = tensor.dim() == 4 and grid.dim() == 4 and grid.shape[0] == tensor.shape[0] and grid.shape[-1] == 2
    return ((*tensor.shape[:2], *grid.shape[1:3]),) if fits else None


SHAPES: Mapping[object, Callable[..., Shapes | None]] = {
    aten.native_layer_norm.default: layer_norm,
    aten.native_batch_norm.default: batch_norm,
    aten.native_group_norm.default: group_norm,
    aten.grid_sampler_2d.default: grid_sampler_2d,
}
QUICK = IN_META_KERNELS | CREATIONS | SHAPES.keys()
