"""Tensors without data, with the metadata that PyTorch's kernels give their results.

PyTorch's functions for metadata are often written anew, in Python. Some lay results out otherwise (`layouts.py` has the
rules). Those that refuse dtypes which the kernel takes, or give results another one, are replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.symbolic.all_sizes import is_size_oblivious
from thunder_core.tracing.capture.symbolic.metadata import decide, deciding, is_between_symbols, sliced
from thunder_core.tracing.capture.torch_facts.casts import require_castable
from thunder_core.tracing.capture.torch_facts.examples import example_of
from thunder_core.tracing.capture.torch_facts.indexing import indexed
from thunder_core.tracing.capture.torch_facts.layouts import (
    OF_NOTHING,
    Rule,
    is_symbolic,
    lay_out,
    rule,
    rule_of,
    tensors_of,
)
from thunder_core.tracing.capture.torch_facts.writes import versioned_lists
from thunder_core.tracing.ir.sizes import generic_hint_of, hint_of, symbolic_dense_strides
from thunder_core.tracing.ir.tree import leaves, replace_leaves

ALIGNMENT = 16  # bytes, of the rows of grouped products and of what they are made of
MATRIX = 2  # dimensions
GROUPED = (torch.float32, torch.bfloat16, torch.float16)


class FaithfulMode(FakeTensorMode):
    """A mode in which operations compute metadata alone, with the strides that kernels give to their results."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on tensors without data."""
        output = self._dispatched(func, types, args, kwargs or {})
        if self.shape_env is not None and is_size_oblivious():
            for leaf in leaves(output):
                settle_contiguity(leaf, self.shape_env)
        return output

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for position, name in versioned_lists(func):
            raise_versions(args[position] if position < len(args) else kwargs[name])
        if self.shape_env is not None:
            decide(func, args, kwargs)
        if func is aten.slice.Tensor and is_between_symbols(args, kwargs):
            with self:
                return sliced(*args, **kwargs)
        require_castable(func, args, kwargs)
        if func in POWERS and is_power_of_booleans(args, kwargs):
            func, args, kwargs = POWERS[func], args[:1], {name: one for name, one in kwargs.items() if name == "out"}
        if func is aten.bmm.default and is_product_of_nothing(*args):
            with self:
                args = (torch.empty_like(args[0], dtype=args[1].dtype), args[1])
        if func in METADATA:
            with self:
                return METADATA[func](*args, **kwargs)
        with nullcontext() if self.shape_env is None else enable_python_dispatcher(), deciding(func):
            output = super().dispatch(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if self.shape_env is not None and self.shape_env.decides_ones:  # type: ignore[attr-defined]
            decide_ones(output)
        strides, tensors = rule_of(func, args), tensors_of(args, kwargs)
        if strides is not None and tensors and all(tensor.layout is torch.strided for tensor in tensors):
            results = [leaf for leaf in leaves(output) if type(leaf) is FakeTensor]
            if any(map(is_symbolic, (*tensors, *results))):
                for tensor in results:
                    self._lay_out_symbolic(tensor, strides, args, kwargs)
                return output
            for tensor in results:
                if tensor.numel() or strides in OF_NOTHING:
                    lay_out(tensor, strides(args, kwargs, tensor))
        return output

    def _lay_out_symbolic(self, tensor: torch.Tensor, rule: Rule, args: Any, kwargs: Any) -> None:
        """Lay out a result in the order in memory that it has for certain sizes, of which none is zero or one.

        Those of the call are taken where such ones do not fit together.
        """
        for value_of in (generic_hint_of, hint_of):
            valued: Callable[[Any], Any] = functools.partial(example_of, mode=self, value_of=value_of)
            example = valued(tensor)
            arguments = replace_leaves((tuple(args), dict(kwargs)), valued)
            with suppress(RuntimeError):
                applies = example.numel() or rule in OF_NOTHING
                strides = rule(arguments[0], arguments[1], example) if applies else None
                if strides is not None and strides != example.stride():
                    with no_dispatch():
                        tensor.as_strided_(tensor.shape, symbolic_dense_strides(strides, example.shape, tensor.shape))
                return


def decide_ones(output: Any) -> None:
    """Decide of each symbolic size of an operation's results whether it is one, by which strides are chosen."""
    for leaf in leaves(output):
        for size in leaf.shape if isinstance(leaf, torch.Tensor) else ():
            bool(size == 1)


def settle_contiguity(result: Any, environment: ShapeEnv) -> None:
    """Let PyTorch's C++ take a tensor with symbolic sizes for contiguous only where it is for all sizes.

    It asks for that in `reshape`, say, within `matmul` and attention, and would decide whether sizes are one. What it
    is told when it first asks, it remembers with the tensor.
    """
    if type(result) is FakeTensor and result.layout is torch.strided and is_symbolic(result):
        with environment.answering_for_all_sizes(), torch._C.DisableTorchFunction(), no_dispatch():  # type: ignore[attr-defined]
            torch.Tensor.is_contiguous(result)


def raise_versions(written: Sequence[torch.Tensor]) -> None:
    """Note for autograd that tensors were written to, as often as they are in the list."""
    for tensor in written:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def grouped_mm(
    one: torch.Tensor,
    other: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product of groups of matrices, whose rows are padded to 16 bytes.

    The checks are those of PyTorch's kernels (GroupedMMUtils.h). Its own function for metadata takes bfloat16 alone,
    and pads in builds for CUDA alone.
    """
    require(one.dtype in GROUPED and other.dtype == one.dtype, "grouped_mm of other dtypes")
    require(out_dtype in (None, one.dtype) and bias is None, "grouped_mm with a bias or another dtype")
    require(one.dim() in (2, 3) and other.dim() in (2, 3), "grouped_mm of other than 2 or 3 dimensions")
    require((offsets is None) == (one.dim() == other.dim() == 3), "grouped_mm needs offsets for 2 dimensions")
    require(one.shape[-1] == other.shape[-2], "grouped_mm of matrices that do not fit")
    require(is_aligned(one) and is_aligned(other), "strides should be multiple of 16 bytes")
    shape = [*_groups(one, other, offsets), one.shape[-2], other.shape[-1]]
    row = -(-shape[-1] * one.itemsize // ALIGNMENT) * ALIGNMENT // one.itemsize
    strides = [shape[-2] * row, row, 1][-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=one.dtype, device=one.device)


def _groups(one: torch.Tensor, other: torch.Tensor, offsets: torch.Tensor | None) -> list[int]:
    """The leading dimension of the product, which it has where both or neither of the factors have one."""
    counts = {tensor.shape[0] for tensor in (one, other) if tensor.dim() == 3}
    counts |= set() if offsets is None else {offsets.shape[0]}
    require(len(counts) == 1, "grouped_mm of other numbers of groups")
    return list(counts) if one.dim() == other.dim() else []


def is_aligned(matrix: torch.Tensor) -> bool:
    """Whether the rows, or the columns, of matrices are whole ones that begin at multiples of 16 bytes."""
    rows, columns = matrix.stride()[-2:]
    if rows == 1 and columns >= max(1, matrix.shape[-2]):
        return columns * matrix.itemsize % ALIGNMENT == 0
    return columns == 1 and rows >= max(1, matrix.shape[-1]) and rows * matrix.itemsize % ALIGNMENT == 0


def block_diag(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The matrix with the given ones along its diagonal.

    Its dtype is that of arithmetic with them, in which tensors without dimensions count less; PyTorch's own function
    for metadata lets all count alike.
    """
    require(all(tensor.dim() <= MATRIX for tensor in tensors), "block_diag of more than 2 dimensions")
    require(len({tensor.device for tensor in tensors}) < 2, "block_diag of tensors on several devices")
    if not tensors:
        return torch.empty(1, 0)
    shapes = [(1,) * (MATRIX - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    shape = [sum(sizes) for sizes in zip(*shapes, strict=True)]
    return torch.empty(shape, dtype=result_dtype(tensors), device=tensors[0].device)


def assert_metadata(
    tensor: torch.Tensor,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    """Raise an error where a tensor has other metadata; PyTorch's own function takes no list for its sizes."""
    require(size is None or tuple(size) == tuple(tensor.shape), "Tensor sizes mismatch!")
    require(stride is None or tuple(stride) == tuple(tensor.stride()), "Tensor strides mismatch!")
    require(dtype in (None, tensor.dtype), "Tensor dtype mismatch!")
    require(device in (None, tensor.device), "Tensor device mismatch!")
    require(layout in (None, tensor.layout), "Tensor layout mismatch!")


def is_power_of_booleans(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a power is one of booleans, whose dtype kernels give it; in PyTorch's own metadata it has integers."""
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    return type(exponent) is bool and args[0].dtype == torch.bool


def is_product_of_nothing(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether batches of matrices have other dtypes and no elements: the kernel compares dtypes of elements alone."""
    return one.dtype != other.dtype and (one.numel() == 0 or other.numel() == 0)


def result_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype of arithmetic with all of the tensors (`at::native::result_type`)."""
    kinds = [[tensor.dtype for tensor in tensors if bool(tensor.dim()) == has_dims] for has_dims in (True, False)]
    dtypes = [functools.reduce(torch.promote_types, kind) for kind in kinds if kind]
    if len(dtypes) == 1:
        return dtypes[0]
    return torch.result_type(torch.empty(1, dtype=dtypes[0]), torch.empty((), dtype=dtypes[1]))


def require(condition: bool, what: str) -> None:
    """Raise an error of the operation's, which is one of the program's."""
    if not condition:
        raise RuntimeError(what)


aten = torch.ops.aten
POWERS: Mapping[object, Any] = {  # and operations on one tensor of booleans that have the metadata of theirs
    aten.pow.Tensor_Scalar: aten.logical_not.default,
    aten.pow.Tensor_Scalar_out: aten.logical_not.out,
    aten.pow_.Scalar: aten.logical_not_.default,
}
METADATA: dict[object, Callable[..., Any]] = {
    aten._assert_tensor_metadata.default: assert_metadata,
    aten._grouped_mm.default: grouped_mm,
    aten.block_diag.default: block_diag,
}
rule(aten.index.Tensor, aten._unsafe_index.Tensor)(indexed)
