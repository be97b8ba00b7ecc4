"""Rewrites of calls to PyTorch's C++ functions that branch on whether a size is one, so that they are right for all
sizes.

Such a branch would add a needless constraint: the results for a size of one are the same, or differ only in the strides
of dimensions with one element. A call that cannot be rewritten is left unchanged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import (
    extract_shape_from_varargs,
    infer_size,
    is_contiguous_for_memory_format,
    is_contiguous_for_memory_format_or_false,
    is_contiguous_or_false,
)
from torch._subclasses.fake_impls import _compute_stride
from torch.fx.experimental import _config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv, is_equality_with_one
from thunder_core.tracing.capture.torch_facts.layouts import is_symbolic
from thunder_core.tracing.ir.sizes import comparison_keys, hint_of
from thunder_core.tracing.ir.tree import leaves

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
Rewrite = Callable[[Sequence[Any], Mapping[str, Any]], Call | None]
REWRITES: dict[Callable[..., Any], Rewrite] = {}
ALWAYS_REWRITTEN: set[Callable[..., Any]] = set()  # functions that are also rewritten outside of `size_oblivious`
MATRIX = 2  # the number of dimensions of a matrix, not counting batch dimensions
CHANNELS = 2  # the number of dimensions of a batch of images before height and width
LINEAR = ("input", "weight", "bias")  # the parameters of `linear`
FLATTEN = ("input", "start_dim", "end_dim")  # the parameters of `flatten`


def for_all_sizes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call that is right for all symbolic sizes, or the given call if no rewrite applies.

    Outside of `size_oblivious`, only functions in `ALWAYS_REWRITTEN` are rewritten.
    """
    rewrite = REWRITES.get(function) if is_size_oblivious() or function in ALWAYS_REWRITTEN else None
    if rewrite is None or not any(map(has_symbols, leaves((tuple(args), dict(kwargs))))):
        return function, args, kwargs
    return rewrite(args, kwargs) or (function, args, kwargs)


class CallsForAllSizes(TorchFunctionMode):
    """A mode that rewrites each call of a PyTorch function to be right for all sizes, if possible."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the rewritten call, or the given call if no rewrite applies."""
        function, arguments, named = for_all_sizes(func, args, kwargs or {})
        return function(*arguments, **named)


def size_oblivious() -> AbstractContextManager[Any]:
    """Keep PyTorch's meta functions from deciding whether a symbolic size is zero or one during the block.

    The meta functions take the branch that is correct for all sizes, if such a branch exists.
    """
    return deciding_sizes(False)


def decide_sizes_of_one() -> AbstractContextManager[Any]:
    """Let PyTorch's meta functions decide whether symbolic sizes are one, which constrains them, during the block."""
    return deciding_sizes(True)


@contextmanager
def deciding_sizes(decides: bool) -> Iterator[None]:
    """Set whether PyTorch's meta functions decide about sizes of zero and one, during the block.

    `patch` of PyTorch's configs is not used: afterwards, it leaves an unset setting marked as set to its default value,
    and guards on the setting would notice the difference.
    """
    revert = _config._make_closure_patcher(backed_size_oblivious=not decides)()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        revert()


def is_size_oblivious() -> bool:
    """Whether PyTorch's meta functions do not decide whether a symbolic size is zero or one."""
    return bool(_config.backed_size_oblivious)


def has_symbols(leaf: object) -> bool:
    """Whether a value is a symbolic number, or a tensor with a symbolic size, stride or offset."""
    return is_symbolic(leaf) if isinstance(leaf, torch.Tensor) else isinstance(leaf, torch.SymInt | torch.SymFloat)


def rewrites(*functions: Callable[..., Any], always: bool = False) -> Callable[[Rewrite], Rewrite]:
    """Register a rewrite of the calls of functions; with `always`, it also applies outside of `size_oblivious`."""

    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(functions, rewrite))
        ALWAYS_REWRITTEN.update(functions if always else ())
        return rewrite

    return register


@rewrites(torch.Tensor.contiguous)
def contiguous(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Rewrite `contiguous` as the tensor itself if it is contiguous for all sizes, and as a copy otherwise."""
    memory_format = kwargs.get("memory_format", args[1] if len(args) > 1 else torch.contiguous_format)
    if is_contiguous_for_memory_format_or_false(args[0], memory_format=memory_format):
        return itself, args[:1], {}
    return torch.Tensor.clone, args[:1], {"memory_format": memory_format}


def itself(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor."""
    return tensor


@rewrites(torch.Tensor.is_contiguous)
def is_contiguous(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Rewrite `is_contiguous` so that it decides whether sizes are one only if the answer depends on that."""
    return decided_contiguity, args, kwargs


def decided_contiguity(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """Whether a tensor is contiguous. If the answer depends on which sizes are one, the sizes are constrained."""
    with decide_sizes_of_one():
        return bool(is_contiguous_for_memory_format(tensor, memory_format=memory_format))


@rewrites(torch.Tensor.reshape, torch.reshape)
def reshape(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `reshape` as a view if one exists for all sizes, else as a copy; None if the sizes do not fit."""
    tensor, *rest = (kwargs["input"], *args) if "input" in kwargs else args
    shape_asked = kwargs.get("shape", rest)
    try:
        shape = infer_size(extract_shape_from_varargs(shape_asked, validate=False), tensor.numel())
    except (RuntimeError, ValueError):
        return None
    return reshape_for_all_sizes, (tensor, shape), {}


def reshape_for_all_sizes(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Return a tensor in another shape: a view if one exists for all sizes, and a view of a copy otherwise."""
    strides = _compute_stride(tensor.shape, tensor.stride(), shape, size_oblivious=True)
    if is_contiguous_or_false(tensor) or strides is not None:
        return tensor.view(shape)
    return view_of_copy(tensor, shape)


def view_of_copy(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Return a contiguous copy of a tensor in another shape."""
    view: torch.Tensor = torch.ops.aten._unsafe_view(tensor.clone(memory_format=torch.contiguous_format), shape)
    return view


@rewrites(torch.Tensor.flatten, torch.flatten)
def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `flatten` as the `reshape` that joins dimensions; None if it joins none, or they are out of range."""
    arguments = dict(zip(FLATTEN, args, strict=False)) | dict(kwargs)
    tensor, ends = arguments.get("input"), (arguments.get("start_dim", 0), arguments.get("end_dim", -1))
    if tensor is None or arguments.keys() - set(FLATTEN) or not all(type(end) is int for end in ends):
        return None
    start, end = (dim + tensor.dim() if dim < 0 else dim for dim in ends)
    if not 0 <= start < end < tensor.dim():
        return None
    joined = math.prod(tensor.shape[start : end + 1])
    return reshape((tensor, (*tensor.shape[:start], joined, *tensor.shape[end + 1 :])), {})


def upsample(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite an interpolation to use PyTorch's decompositions, because its C++ code takes no symbolic sizes.

    Return None for an image without channels or pixels: PyTorch raises an error for it, but the decompositions would
    not.
    """
    image = args[0] if args else kwargs.get("input")
    if isinstance(image, torch.Tensor) and not all(size > 0 for size in image.shape[1:]):
        return None
    return call_interpolation, (function, *args), kwargs


def call_interpolation(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an interpolation with PyTorch's decompositions, or as it is for a result without pixels, to raise its error.

    The decompositions would not refuse such a result.
    """
    image = with_python_kernels(function, *args, **kwargs)
    has_pixels = all(size > 0 for size in image.shape[CHANNELS:])
    return image if has_pixels else function(*args, **kwargs)


UPSAMPLING = [function for name, function in vars(torch._C._nn).items() if "upsample" in name]
for function in (torch.nn.functional.interpolate, *UPSAMPLING):
    REWRITES[function] = partial(upsample, function)


def with_python_kernels(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with its operations run as PyTorch's decompositions in Python."""
    with enable_python_dispatcher():
        return function(*args, **kwargs)


@rewrites(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
def matmul(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `matmul` of two batches of equal sizes as one `bmm`, and of rows and one matrix or vector as one product.

    Return None if a batch is broadcast. (For rows and one matrix, the C++ code of PyTorch 2.11 would make the number of
    elements of the rows a constant.)
    """
    if are_rows_and_weight(args) and not kwargs:
        return product_of_rows, args, {}
    if len(args) != 2 or kwargs or not all(isinstance(arg, torch.Tensor) and arg.dim() > MATRIX for arg in args):
        return None
    constrain_batches(args)
    batches = [comparison_keys(arg.shape[:-MATRIX]) for arg in args]
    fit = [comparison_keys(args[0].shape[-1:]), comparison_keys(args[1].shape[-2:-1])]
    return (matmul_of_batches, args, {}) if batches[0] == batches[1] and fit[0] == fit[1] else None


def are_rows_and_weight(args: Sequence[Any]) -> bool:
    """Whether the operands are a contiguous batch, and one matrix or vector."""
    if len(args) != 2 or not all(isinstance(arg, torch.Tensor) for arg in args):
        return False
    left, right = args
    return left.dim() > MATRIX and 0 < right.dim() <= MATRIX and is_contiguous_or_false(left)


def product_of_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the products of all rows and one matrix or vector, as `matmul` computes them."""
    rows = reshape_for_all_sizes(left, (math.prod(left.shape[:-1]), left.shape[-1]))
    product: torch.Tensor = torch.ops.aten._unsafe_view(rows @ right, (*left.shape[:-1], *right.shape[1:]))
    return product


def matmul_of_batches(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the products of matrices as `matmul` computes them: with all batch dimensions joined."""
    count, shape = math.prod(left.shape[:-MATRIX]), (*left.shape[:-1], right.shape[-1])
    batches = [reshape_for_all_sizes(tensor, (count, *tensor.shape[-MATRIX:])) for tensor in (left, right)]
    product: torch.Tensor = torch.ops.aten._unsafe_view(torch.bmm(*batches), shape)
    return product


@rewrites(torch.nn.functional.linear)
def linear(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `linear` of a batch of matrices as `linear` of one matrix with all of their rows."""
    arguments = dict(zip(LINEAR, args, strict=False)) | dict(kwargs)
    factors = [*map(arguments.get, LINEAR[:2])]
    dimensions = [factor.dim() if isinstance(factor, torch.Tensor) else 0 for factor in factors]
    if dimensions[1] == 1 and are_rows_and_weight(factors) and arguments.get("bias") is None:
        return product_of_rows, factors, {}
    if arguments.keys() - set(LINEAR) or dimensions[0] <= MATRIX or dimensions[1] != MATRIX:
        return None
    return linear_of_rows, (), arguments


def linear_of_rows(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:  # noqa: A002 - PyTorch's name
    """Return the result of `linear`, which is contiguous for all strides of its input."""
    rows = reshape_for_all_sizes(input, (math.prod(input.shape[:-1]), input.shape[-1]))
    product = torch.nn.functional.linear(rows, weight, bias)
    result: torch.Tensor = torch.ops.aten._unsafe_view(product, (*input.shape[:-1], weight.shape[0]))
    return result


@rewrites(torch.nn.functional.scaled_dot_product_attention)
def attention(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite attention with batches constrained to be equal, and without decisions about sizes of one in a mask.

    Tensors without elements have a separate operation, because the kernels for other tensors divide by sizes.
    """
    tensors = [arg for arg in (*args[:3], *map(kwargs.get, ("query", "key", "value"))) if isinstance(arg, torch.Tensor)]
    if not all(size > 0 for tensor in tensors for size in tensor.shape):
        return attention_without_elements, args, kwargs
    constrain_batches(tensors)
    sizes: Iterator[Any] = (size for tensor in tensors for size in tensor.shape)
    symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    if not symbolic or (isinstance(mask, torch.Tensor) and is_broadcast_by_value(mask)):
        return None
    if not isinstance(mask, torch.Tensor):
        return attention_on_device, args, kwargs
    constrain_batches((mask, tensors[0]))
    return partial(attention_with_mask, symbolic[0].node.shape_env), args, kwargs


def is_broadcast_by_value(mask: torch.Tensor) -> bool:
    """Whether a batch size of a mask is symbolic and one in this call."""
    sizes: Sequence[Any] = mask.shape[:-MATRIX]
    return any(isinstance(size, torch.SymInt) and hint_of(size) == 1 for size in sizes)


def attention_with_mask(environment: TraceShapeEnv, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return attention with a mask.

    Each batch size of the mask is 1 in all calls, or equals the batch size of the queries. PyTorch compares the batch
    size with both, in an order that depends on PyTorch's version, and computes the same in both cases.
    """
    with environment.answering_for_all_sizes(is_equality_with_one):
        return attention_on_device(*args, **kwargs)


def attention_on_device(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return attention; for a GPU, its metadata come from PyTorch's decomposition into plain operations (`MATH`).

    The meta functions of the GPU's kernels would decide conditions on sizes. The Python dispatcher is enabled, because
    `matmul` in C++ does not accept symbolic sizes in PyTorch 2.11. When the trace runs, PyTorch selects a kernel for
    each call. With gradients, PyTorch selects the kernel at tracing, because its backward is recorded.
    """
    tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if tensors[0].device.type == "cpu":
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
    is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with enable_python_dispatcher(), nullcontext() if is_recorded else sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def attention_without_elements(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return attention of tensors without elements; its operation depends on the sizes of the call."""
    with decide_sizes_of_one():
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def constrain_batches(tensors: Sequence[torch.Tensor]) -> None:
    """Constrain equal batch sizes of matrices to stay equal, so that no guard says whether a batch size is one."""
    for first, second in itertools.combinations(tensors, 2):
        batches: list[tuple[Any, ...]] = [tensor.shape[-MATRIX - 1 :: -1] for tensor in (first, second)]
        for left, right in zip(*batches, strict=False):
            if isinstance(left, torch.SymInt) and isinstance(right, torch.SymInt) and hint_of(left) == hint_of(right):
                bool(left == right)
