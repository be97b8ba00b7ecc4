"""The kinds of products that the kernel computes: the operation, the dtypes of its tensors, and the C++ type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from thunder_core.tracing.analysis.named_arguments import arguments_by_name
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.padding.rows import linear_of_rows


@dataclass(frozen=True)
class ProductKind:
    """A kind of products: the operation, the dtypes of its tensors, and the type in C++ that computes it.

    `extra` is the dtype of a third argument with a number for each column: scales if `scales` is set, otherwise a bias.
    If `in_groups` is set, the weight has the shape (blocks, depth, 32), and the scales and zeros (groups, columns, 2).
    If `prepacked` is set, a weight is packed at its first product, and the packed weight is kept. `tolerance` is
    relative; sums of numbers near one may also differ by the tolerance times the square root of the depth.
    """

    operation: str
    arguments: tuple[str, ...]
    type: str
    input: torch.dtype
    weight: torch.dtype
    extra: torch.dtype | None
    result: torch.dtype
    description: str = ""
    tolerance: float = 0.0
    scales: bool = False
    in_groups: bool = False
    prepacked: bool = False

    @property
    def function(self) -> Callable[..., torch.Tensor]:
        """The function of PyTorch or Thunder that computes the operation without the kernel."""
        function: Any = reduce(getattr, self.operation.split(".")[1:], torch)
        return function  # type: ignore[no-any-return]


def _linear(kind: str, dtype: torch.dtype, description: str, tolerance: float) -> ProductKind:
    return ProductKind(LINEAR, ("input", "weight", "bias"), kind, dtype, dtype, dtype, dtype, description, tolerance)


LINEAR = "torch.nn.functional.linear"
LINEAR_OF_ROWS = f"{linear_of_rows.__module__}.{linear_of_rows.__qualname__}"
COUNT = "count"  # the argument of `linear_of_rows` with the number of rows that are multiplied
FLOAT32 = _linear("Floats<float>", torch.float32, "", 1e-4)
PREPACKED = replace(FLOAT32, type="Packed", description="packed once", prepacked=True)
INT8 = ProductKind(
    operation="torch.ops.thunder.int8_product",
    arguments=("x", "codes", "scales"),
    type="Scaled",
    input=torch.bfloat16,
    weight=torch.int8,
    extra=torch.bfloat16,
    result=torch.bfloat16,
    description="with 8-bit weights",
    tolerance=2**-6,
    scales=True,
)
KINDS = (
    FLOAT32,
    _linear("Floats<BFloat16>", torch.bfloat16, "in bfloat16", 2**-6),
    _linear("Floats<Half>", torch.float16, "in float16", 2**-9),
    INT8,
    replace(
        INT8,
        operation="torch.ops.thunder.int4_product",
        arguments=("x", "codes", "scales_and_zeros"),
        type="Groups",
        weight=torch.uint8,
        description="with 4-bit weights",
        in_groups=True,
    ),
    ProductKind(
        operation="torch.ops.thunder.integer_product",
        arguments=("x", "codes"),
        type="Integers",
        input=torch.int8,
        weight=torch.int8,
        extra=None,
        result=torch.int32,
        description="in 8-bit integers",
    ),
)
OPERATIONS = frozenset((LINEAR_OF_ROWS, *(kind.operation for kind in KINDS)))


def kind_of(operation: str, operands: Mapping[str, TensorProxy], result: TensorProxy) -> ProductKind | None:
    """Return the kind of the product that an operation computes from operands; None if no kind has their dtypes."""
    return next((kind for kind in KINDS if kind.operation == operation and _has_dtypes(kind, operands, result)), None)


def operation_of(bsym: BoundSymbol) -> str:
    """Return the operation of the kind of products that a bound symbol computes, for all rows or for some."""
    return LINEAR if bsym.symbol.name == LINEAR_OF_ROWS else bsym.symbol.name


def operands_of(bsym: BoundSymbol) -> dict[str, Any]:
    """Return the arguments of a product by name; arguments that are None are left out."""
    operation = operation_of(bsym)
    names = next(kind.arguments for kind in KINDS if kind.operation == operation)
    names = (*names, COUNT) if operation != bsym.symbol.name else names
    arguments = arguments_by_name(bsym, names) or {}
    return {name: value for name, value in arguments.items() if value is not None}


def _has_dtypes(kind: ProductKind, operands: Mapping[str, TensorProxy], result: TensorProxy) -> bool:
    """Whether operands and result have the dtypes of a kind; a bias may be missing, but scales may not."""
    required = kind.arguments if kind.scales else kind.arguments[:2]
    dtypes = dict(zip(kind.arguments, (kind.input, kind.weight, kind.extra), strict=False))
    return (
        operands.keys() >= set(required)
        and all(proxy.dtype is dtypes[name] for name, proxy in operands.items())
        and result.dtype is kind.result
    )
