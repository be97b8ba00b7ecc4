"""Metadata of operations from their kernels for the meta device alone, without PyTorch's dispatch of fake tensors.

PyTorch's dispatch of one operation on fake tensors takes 0.3 to 1 ms more than the kernel, and some kernels are
references in Python that run many operations: those of layer norm, batch norm, and GELU take 0.5 to 2 ms. This module
calls the kernel alone where the dispatch would call the same kernel, and replaces such references. The strides are
corrected afterwards, as for all operations (`torch_facts/layouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.as_strided.default),
    *(aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.slice.Tensor),
    *(aten.unfold.default, aten.diagonal.default, aten.alias.default, aten.detach.default),
)
UNARY = ("neg", "cos", "sin", "exp", "tanh", "sigmoid", "silu", "rsqrt", "sqrt", "bitwise_not", "clone", "log", "erf")
BINARY = ("add", "sub", "mul", "div", "bitwise_and", "bitwise_or", "eq", "ne", "lt", "le", "gt", "ge")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PRODUCTS: Mapping[object, Any] = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}
# The result has the dtype of the first tensor, or one that the kernel derives from it. The tensors have one dtype.
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
# The result has the dtype of the first floating-point operand; masks and indices have others.
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
PRECISE = (torch.float32, torch.float64)  # dtypes of which the statistics of a norm have the same dtype


def stand_in(func: Any, args: Arguments, kwargs: Keywords) -> tuple[Any, Arguments, Keywords]:
    """Return an operation whose result has the same metadata, and which is computed faster, or the operation itself."""
    if func in LIKE_NEGATION and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
        return aten.neg.default, args[:1], {}
    return func, args, kwargs


def has_quick_metadata(mode: FakeTensorMode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    """Whether `metadata_on_meta` returns what PyTorch's dispatch would return for these arguments.

    All tensors must be plain fakes of the mode on one device.
    """
    if func in OF_KNOWN_SHAPES:
        return has_known_shapes(mode, func, args, kwargs)
    if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
        return False
    if func in CREATIONS:
        return kwargs.get("device") in (None, torch.device("cpu"))
    if func not in IN_META_KERNELS or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return False
    tensors = list(_tensors(args))
    return (
        bool(tensors)
        and all(is_plain(tensor, mode) for tensor in tensors)
        and {tensor.device for tensor in tensors} | {kwargs.get("device") or tensors[0].device} == {tensors[0].device}
        and not (func is aten.index.Tensor and has_mask(tensors[1:]))
        and (func in OF_SEVERAL_DTYPES or len({tensor.dtype for tensor in tensors}) == 1)
    )


def is_plain(tensor: torch.Tensor, mode: FakeTensorMode) -> bool:
    """Whether a tensor is a fake of a mode with strides, without a known value."""
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


def device_of_result(args: Arguments) -> torch.device:
    """Return the device of an operation's results: that of its tensors, or the CPU."""
    tensor = next(_tensors(args), None)
    return torch.device("cpu") if tensor is None else tensor.device


def metadata_on_meta(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Return the results of an operation on the meta device. Fakes must behave as tensors on the meta device."""
    if func in OF_KNOWN_SHAPES:
        metas = OF_KNOWN_SHAPES[func](*args)
        return metas if len(metas) > 1 else metas[0]
    if func in PRODUCTS and not kwargs:  # the sum has no C++ code for the meta device
        meta = PRODUCTS[func](*args[1:3])
        args[0].expand(meta.shape)
        return meta
    return func(*args, **(kwargs | {"device": "meta"} if func in CREATIONS or "device" in kwargs else kwargs))


def has_known_shapes(mode: FakeTensorMode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    """Whether the operands have one dtype, which the results have too, and shapes that the operation accepts."""
    tensors = list(_tensors(args))
    return (
        not kwargs
        and isinstance(args[0], torch.Tensor)
        and all(is_plain(tensor, mode) and tensor.device.type == "cpu" for tensor in tensors)
        and {tensor.dtype for tensor in tensors} <= {args[0].dtype}
        and args[0].dtype in PRECISE
        and FITTING[func](*args)
    )


def layer_norm(
    tensor: torch.Tensor, shape: Sequence[int], weight: object, bias: object, eps: float
) -> tuple[torch.Tensor, ...]:
    """Return the normalized tensor, the means and the reciprocal deviations (layer_norm.cpp)."""
    statistics = (*tensor.shape[: tensor.dim() - len(shape)], *(1 for _ in shape))
    return _meta(tensor.shape, tensor), _meta(statistics, tensor), _meta(statistics, tensor)


def fits_layer_norm(
    tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> bool:
    """Whether the operands have the shapes that layer norm requires; otherwise PyTorch raises the error."""
    operands = [operand.shape for operand in (weight, bias) if operand is not None]
    return 0 < len(shape) <= tensor.dim() and all(
        tuple(shape) == tuple(found) for found in (tensor.shape[-len(shape) :], *operands)
    )


def batch_norm(
    tensor: torch.Tensor, weight: object, bias: object, mean: object, variance: object, training: bool, *_: float
) -> tuple[torch.Tensor, ...]:
    """Return the normalized tensor and the saved statistics, which only training has (Normalization.cpp)."""
    count = tensor.shape[1] if training else 0
    return _meta(tensor.shape, tensor), _meta((count,), tensor), _meta((count,), tensor)


def fits_batch_norm(tensor: torch.Tensor, *operands: Any) -> bool:
    """Whether the operands have the shapes that batch norm requires; otherwise PyTorch raises the error."""
    return tensor.dim() > 1 and all(operand.shape == tensor.shape[1:2] for operand in _tensors(operands))


def group_norm(
    tensor: torch.Tensor, weight: object, bias: object, batch: int, channels: int, size: int, groups: int, eps: float
) -> tuple[torch.Tensor, ...]:
    """Return the normalized tensor, the means and the reciprocal deviations (group_norm.cpp)."""
    return _meta(tensor.shape, tensor), _meta((batch, groups), tensor), _meta((batch, groups), tensor)


def fits_group_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> bool:
    """Whether the operands have the shapes that group norm requires; otherwise PyTorch raises the error."""
    return (
        tensor.shape[:2] == (batch, channels)
        and tensor.numel() == batch * channels * size
        and groups > 0
        and channels % groups == 0
        and all(operand.shape == (channels,) for operand in (weight, bias) if operand is not None)
    )


def grid_sampler_2d(tensor: torch.Tensor, grid: torch.Tensor, *_: object) -> tuple[torch.Tensor]:
    """Return the samples of an image at the points of a grid (GridSampler.cpp)."""
    return (_meta((*tensor.shape[:2], *grid.shape[1:3]), tensor),)


def fits_grid_sampler_2d(tensor: torch.Tensor, grid: torch.Tensor, *_: object) -> bool:
    """Whether the operands have the shapes that the sampler requires; otherwise PyTorch raises the error."""
    return tensor.dim() == 4 and grid.dim() == 4 and grid.shape[0] == tensor.shape[0] and grid.shape[-1] == 2


def _meta(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")


OF_KNOWN_SHAPES: Mapping[object, Callable[..., tuple[torch.Tensor, ...]]] = {
    aten.native_layer_norm.default: layer_norm,
    aten.native_batch_norm.default: batch_norm,
    aten.native_group_norm.default: group_norm,
    aten.grid_sampler_2d.default: grid_sampler_2d,
}
FITTING: Mapping[object, Callable[..., bool]] = {
    aten.native_layer_norm.default: fits_layer_norm,
    aten.native_batch_norm.default: fits_batch_norm,
    aten.native_group_norm.default: fits_group_norm,
    aten.grid_sampler_2d.default: fits_grid_sampler_2d,
}


def _tensors(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of arguments, and those of lists among them."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (item for item in arg if isinstance(item, torch.Tensor))
