"""The strides of kernels' results where PyTorch's meta functions return other strides.

The strides of inputs determine which derivative and which kernel is used, and a program may read them. So fakes get the
strides of the future real tensors, also in dimensions of size one: `suggest_memory_format` reads these, and a kernel
with an unexpected layout may compute wrong numbers.

The rules follow PyTorch's source (TensorIterator.cpp, TensorFactories.cpp, the kernels' own allocations). Tests compare
them with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.torch_facts.strides import (
    CHANNELS_LAST,
    Strides,
    dense_strides,
    is_channels_last,
    is_dense,
    order_in_memory,
)
from thunder_core.tracing.ir.tree import leaves

aten = torch.ops.aten
# called with args, kwargs and a result; returns None if the strides of the result are right
Rule = Callable[[Any, Any, torch.Tensor], Strides | None]
RULES: dict[object, Rule] = {}
NUMBERS = (bool, int, float, complex)


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor has a symbolic size, stride or offset."""
    return bool(tensor._has_symbolic_sizes_strides)


def lay_out(tensor: torch.Tensor, strides: Strides | None) -> None:
    """Give a fake tensor other strides, in the same memory."""
    if strides is not None and strides != tensor.stride():
        with no_dispatch():
            tensor.as_strided_(tensor.shape, strides)


def rule_of(func: object, args: Sequence[Any]) -> Rule | None:
    """Return the rule for the strides of an operation's results; None if PyTorch's own metadata is right."""
    registered = RULES.get(func)
    if registered is not None or not isinstance(func, torch._ops.OpOverload) or torch.Tag.pointwise not in func.tags:
        return registered
    if func._schema.is_mutable or func in AS_PYTORCH_SAYS:
        return None
    return with_number if takes_number(func, args) else pointwise


def takes_number(func: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operand of a pointwise operation is a number; a number that is a parameter does not count."""
    if func in PARAMETERS:
        return False
    name = func._overloadname
    has_number = any(isinstance(arg, NUMBERS) for arg in args[:2])
    return "scalar" in name.lower() or (name.startswith("Tensor") and has_number)


def rule(*operators: object) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def tensors_of(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments, in order."""
    return [leaf for leaf in leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]


# ---- pointwise operations ----

PARAMETERS = frozenset({aten.pow.Tensor_Scalar, aten.lerp.Scalar})  # their numbers are not operands
AS_PYTORCH_SAYS = frozenset({aten.mvlgamma.default})


@rule(
    aten.softplus_backward.default,
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.elu_backward.default,
    aten.hardswish_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardtanh_backward.default,
    aten.mish_backward.default,
)
def pointwise(args: object, kwargs: object, result: torch.Tensor) -> Strides | None:
    """Return the strides of TensorIterator's result for the operands."""
    return iterator_strides(tensors_of(args, kwargs), result.shape)


def with_number(args: object, kwargs: object, result: torch.Tensor) -> Strides | None:
    """Return the strides of TensorIterator's result if an operand is a number."""
    return iterator_strides(tensors_of(args, kwargs), result.shape, numbers=True)


@rule(aten.threshold_backward.default, aten.leaky_relu_backward.default)
def input_first(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of the gradient of kernels that take the input before the gradient."""
    return iterator_strides([args[1], args[0]], result.shape)


@rule(aten._prelu_kernel_backward.default)
def prelu_backward(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of the gradient of a kernel that takes the gradient last."""
    return iterator_strides([args[1], args[2], args[0]], result.shape)


@rule(aten.glu.default)
def glu(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of `glu`, whose operands are the halves of its input."""
    tensor = args[0]
    return iterator_strides([tensor.as_strided(result.shape, tensor.stride())] * 2, result.shape)


def iterator_strides(
    operands: Sequence[torch.Tensor], shape: Sequence[int], *, numbers: bool = False
) -> Strides | None:
    """Return the strides of TensorIterator's result with this shape; None if the operands do not broadcast to it."""
    if not operands or tuple(_broadcast_shape(operands)) != tuple(shape):
        return None
    if not numbers and all(operand.shape == shape for operand in operands):
        if all(operand.is_contiguous() for operand in operands):
            return dense_strides(shape)
        if len(shape) == 4 and all(operand.is_contiguous(memory_format=torch.channels_last) for operand in operands):
            return dense_strides(shape, CHANNELS_LAST[4])
        strides = {tuple(operand.stride()) for operand in operands}
        if len(strides) == 1 and is_dense(shape, *strides):
            return strides.pop()
    order = order_in_memory(shape, [_broadcast_strides(operand, shape) for operand in operands])
    return dense_strides(shape, order, least=0 if 0 in shape and order != sorted(order) else 1)


def _broadcast_shape(operands: Sequence[torch.Tensor]) -> torch.Size:
    shape: torch.Size = torch.broadcast_shapes(*(operand.shape for operand in operands))  # type: ignore[no-untyped-call]
    return shape


def _broadcast_strides(operand: torch.Tensor, shape: Sequence[int]) -> Strides:
    missing = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[missing:], strict=True)
    return (0,) * missing + tuple(0 if size == 1 and full_size != 1 else stride for size, stride, full_size in own)


# ---- results with the layout of an input ----


@rule(
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.clone.default,
    aten._to_copy.default,
    aten.flip.default,
    aten.sort.default,
    aten.sort.stable,
    aten.index_put.default,
    aten.frexp.Tensor,
    aten.hardtanh.default,
    aten.relu6.default,
    aten.deg2rad.default,
    aten.rad2deg.default,
    aten.nan_to_num.default,
    aten.huber_loss.default,
    aten.log_sigmoid_backward.default,
    aten._prelu_kernel.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)
def preserved_strides(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of `torch.empty_like` of the first tensor, unless another memory format is requested."""
    tensor = args[0]
    if tensor.shape != result.shape or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    if 0 in tensor.shape or is_dense(tensor.shape, tensor.stride()):
        return tuple(tensor.stride())
    return dense_strides(tensor.shape, order_in_memory(tensor.shape, [tensor.stride()]))


@rule(aten.native_dropout.default)
def dropout(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of dropout's mask, which are those of the input, or of its result, the product of mask and
    input.
    """
    tensor = args[0]
    mask = preserved_strides((tensor,), {}, tensor)
    if result.dtype == torch.bool or mask is None:
        return mask
    return iterator_strides([tensor, torch.empty_strided(tensor.shape, mask, device="meta")], tensor.shape)


@rule(
    aten.native_group_norm.default,
    aten.max_unpool2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad3d.default,
)
def suggested_strides(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return strides in the memory format that the input suggests, if the result has as many dimensions."""
    return _strides_in_format(args[0], suggests_channels_last(args[0]), result)


@rule(
    aten.native_group_norm_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def suggested_by_input(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return strides of an input's gradient in the memory format that the input suggests."""
    return _strides_in_format(args[1], suggests_channels_last(args[1]), result)


@rule(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
)
def batch_norm(args: object, kwargs: object, result: torch.Tensor) -> Strides | None:
    """Return strides in the memory format of the input.

    If all other operands are contiguous, this is the format in which the input is contiguous. Otherwise, or if there is
    no such format, it is the format that the input suggests.
    """
    tensor, *others = tensors_of(args, kwargs)
    plain = contiguous_format(tensor) is not None and all(operand.is_contiguous() for operand in others)
    return _strides_in_format(tensor, contiguous_format(tensor) if plain else suggests_channels_last(tensor), result)


@rule(aten.native_batch_norm_backward.default)
def batch_norm_backward(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return strides of a norm's input gradient in the common format of gradient and input, or the input's."""
    gradient, tensor = args[0], args[1]
    plain = None not in (contiguous_format(gradient), contiguous_format(tensor))
    same = suggests_channels_last(gradient) == suggests_channels_last(tensor)
    return _strides_in_format(
        tensor, contiguous_format(tensor) if plain and same else suggests_channels_last(tensor), result
    )


def suggests_channels_last(tensor: torch.Tensor) -> bool:
    """Whether `suggest_memory_format` returns channels_last or channels_last_3d."""
    return is_channels_last(tensor.shape, tensor.stride())


def contiguous_format(tensor: torch.Tensor) -> bool | None:
    """Return False for a contiguous tensor, True for a tensor that is contiguous in channels_last, and None for
    others.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.is_contiguous():
        return False
    last = tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
    return True if last else None


def _strides_in_format(tensor: torch.Tensor, last: bool | None, result: torch.Tensor) -> Strides | None:
    if tensor.device.type != "cpu" or tensor.dim() != result.dim():
        return None
    return dense_strides(result.shape, CHANNELS_LAST[result.dim()] if last else None)


@rule(
    aten.pow.Scalar,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.tril.default,
    aten.triu.default,
    aten._log_softmax.default,
    aten._log_softmax_backward_data.default,
    aten.log_sigmoid_forward.default,
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.glu_backward.default,
    aten.nll_loss2d_forward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
def contiguous(args: object, kwargs: object, result: torch.Tensor) -> Strides | None:
    """Return the strides of a contiguous tensor on the CPU; None elsewhere, where PyTorch's own metadata is right."""
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors_of(args, kwargs))
    return dense_strides(result.shape) if on_cpu else None


@rule(aten.view.default, aten._unsafe_view.default)
def view_strides(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of a view from PyTorch's own function, which reads no data."""
    tensor = args[0]
    with no_dispatch():
        bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return tuple(aten.view.default(bare, result.shape).stride())


@rule(aten.roll.default)
def roll_strides(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides after joining the two parts along each dimension in turn."""
    tensor, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dims", ())
    if tensor.device.type != "cpu" or not dims:
        return None
    with no_dispatch():
        bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        for shift, dim in zip(shifts, dims, strict=True):
            first = bare.narrow(dim, 0, -shift % bare.shape[dim])
            bare = torch.cat([bare.narrow(dim, first.shape[dim], bare.shape[dim] - first.shape[dim]), first], dim)
        return tuple(bare.stride())


# ---- convolutions -------------------------------------------------------------------------------------------------

NUMBERS_OF_CONVOLUTION = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
GROUP_BY_GROUP = frozenset(f"{kind}{dims}d" for kind in ("Slow", "SlowDilated", "SlowTranspose") for dims in (2, 3))


@rule(aten.convolution.default)
def convolution(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of the joined results of groups, if a kernel computes group by group."""
    memory_format = format_of_groups(args[0], args[1], args[3:]) if len(args) == 9 else None
    return None if memory_format is None else _joined_strides(result.shape, 1, args[8], memory_format)


@rule(aten.convolution_backward.default)
def convolution_backward(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of a convolution's gradients: joined from groups for the input, or like the weight."""
    memory_format = format_of_groups(args[1], args[2], args[4:10]) if len(args) == 11 else None
    if memory_format is None or result.dim() != args[1].dim():
        return None
    if result.shape == args[1].shape:
        return _joined_strides(result.shape, 1, args[9], memory_format)
    return _like_weight(args[2], args[9], memory_format)


def format_of_groups(tensor: Any, weight: Any, numbers: Sequence[Any]) -> torch.memory_format | None:
    """Return the memory format of a convolution that is computed group by group, or None for others."""
    if tensor.dim() not in CHANNELS_LAST or tensor.device.type != "cpu":
        return None
    settings = dict(zip(NUMBERS_OF_CONVOLUTION, numbers, strict=True))
    with tensor.fake_mode:
        backend = torch._C._select_conv_backend(tensor, weight, bias=None, bias_sizes=None, **settings)
        memory_format = torch._C._conv_determine_backend_memory_format(tensor, weight, backend)
    return memory_format if backend.name in GROUP_BY_GROUP else None


def is_reordered_by_groups(
    tensor: torch.Tensor, weight: torch.Tensor, groups: int, transposed: bool, memory_format: torch.memory_format
) -> bool:
    """Whether results or gradients that are joined from groups differ from the memory format."""
    order = CHANNELS_LAST.get(tensor.dim())
    if order is None:
        return True
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    shapes = [(tensor.shape[0], count, *tensor.shape[2:]) for count in (tensor.shape[1], channels)]
    layouts = [(shape, _joined_strides(shape, 1, groups, memory_format)) for shape in shapes]
    layouts.append((tuple(weight.shape), _like_weight(weight, groups, memory_format)))
    return any(
        size > 1 and stride != usual
        for shape, strides in layouts
        for size, stride, usual in zip(shape, strides, dense_strides(shape, order), strict=True)
    )


def _joined_strides(shape: Sequence[int], dim: int, groups: int, memory_format: torch.memory_format) -> Strides:
    sizes = [size // groups if index == dim else size for index, size in enumerate(shape)]
    with no_dispatch():
        part = torch.empty(sizes, device="meta", memory_format=memory_format)
        return tuple((part if groups == 1 else torch.cat([part] * groups, dim)).stride())


def _like_weight(weight: torch.Tensor, groups: int, memory_format: torch.memory_format) -> Strides:
    sizes = [weight.shape[0] // groups, *weight.shape[1:]]
    part = dense_strides(sizes, CHANNELS_LAST[weight.dim()] if memory_format != torch.contiguous_format else None)
    with no_dispatch():
        bare = torch.empty_strided(weight.shape, weight.stride(), device="meta").narrow(0, 0, sizes[0])
        if memory_format != torch.contiguous_format and bare.is_contiguous(memory_format=memory_format):
            part = tuple(bare.stride())
        gradient = torch.empty_strided(sizes, part, device="meta")
        return tuple((gradient if groups == 1 else torch.cat([gradient] * groups, 0)).stride())


# The rules that also apply to tensors without elements.
RULES_FOR_EMPTY_TENSORS = frozenset({pointwise, with_number, preserved_strides, contiguous})
