"""A linear layer as a matrix product: its tensors in memory, and the source of the region that multiplies them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import sympy

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.backend.quantization.integers import BLOCK
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import expressions, hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_linear.activations import Activation, activation_of
from thunder_executors.packed_linear.product_kinds import (
    COUNT,
    FLOAT32,
    PREPACKED,
    ProductKind,
    kind_of,
    operands_of,
    operation_of,
)
from thunder_executors.packed_linear.region_names import RegionNames
from thunder_executors.packed_linear.source import NAME, PACK

TEXT = """\
\"\"\"{title}.\"\"\"

import torch
{preparation}
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu


def {entry}(args):
    {names} = args
    args.clear()
    result = empty_strided_cpu({shape}, {stride}, {dtype})
    rows = {rows}
    sizes = (rows, {depth}, {columns}, {input_stride}, {weight_stride})
    {function}(x, {weight}, {extra}, result, *sizes, {has_extra}, {activation})
{end}    return result
"""

# The other rows of a product of some rows are zeros, also after an activation.
ZEROS = "    result.view(-1, {columns})[rows:].zero_()\n"

PREPARATION = f"""
from thunder_executors.packed_linear.packed_weights import PackedWeights

packed = PackedWeights.of({PACK})
"""


@dataclass(frozen=True)
class Product:
    """The product of an input [..., depth] with a weight [columns, depth], and an optional bias or scales [columns].

    `count` is the number of first rows that are multiplied; without it, all rows are multiplied.

    `thunder_core.backend.quantization.integers` defines the layout of a weight in groups.
    """

    input: TensorProxy
    weight: TensorProxy
    extra: TensorProxy | None
    result: TensorProxy
    kind: ProductKind = FLOAT32
    activation: Activation | None = None
    count: TensorProxy | None = None

    @property
    def depth(self) -> int:
        """The length of a row of the input, and of the weight."""
        return int(self.weight.shape[1])

    @property
    def columns(self) -> int:
        """The length of a row of the result."""
        scales = self.extra if self.kind.in_groups else None
        return int(self.weight.shape[0] if scales is None else scales.shape[1])

    @property
    def groups(self) -> int:
        """The number of groups in a row of the weight, each with its own scales; 1 unless the weight is in groups."""
        return int(self.extra.shape[0]) if self.kind.in_groups and self.extra is not None else 1

    @property
    def group_length(self) -> int:
        """The number of weights in a group, which is the whole row unless the weight is in groups."""
        return self.depth // self.groups

    @property
    def rows(self) -> int:
        """The number of rows of the input, at the sizes seen while tracing."""
        return prod(map(hint_of, self.input.shape[:-1]))

    @property
    def title(self) -> str:
        """The product as text: `128 x 512 to 1376, with bias`; symbolic rows have the number seen while tracing."""
        bias = "" if self.extra is None or self.kind.scales else "with bias"
        numbers = f"{self.rows} x {self.depth} to {self.columns}"
        groups = f" in groups of {self.group_length}" if self.kind.in_groups else ""
        activation = "" if self.activation is None else self.activation.title
        return ", ".join(word for word in (numbers, bias, self.kind.description + groups, activation) if word)


def product_of(bsym: BoundSymbol) -> Product | None:
    """Return the product that a bound symbol computes; None if the kernel does not support it or its tensors."""
    operands, result = operands_of(bsym), bsym.output
    if not all(isinstance(operand, TensorProxy) for operand in (*operands.values(), result)):
        return None
    count = operands.pop(COUNT, None)
    kind = kind_of(operation_of(bsym), operands, result)
    if kind is None:
        return None
    x, weight, *extra = (operands.get(name) for name in kind.arguments)
    product = Product(x, weight, (*extra, None)[0], result, kind, count=count)  # type: ignore[arg-type]
    return product if is_supported(product) else None


def with_activation(product: Product, bsym: BoundSymbol) -> Product | None:
    """Return the product with a bound symbol's activation of its result; None if the kernel does not support both."""
    activation, result = activation_of(bsym), bsym.output
    if product.kind not in (FLOAT32, PREPACKED) or activation is None:
        return None
    changed = replace(product, result=result, activation=activation)
    return changed if result.dtype is product.result.dtype and is_supported(changed) else None


def is_supported(product: Product) -> bool:
    """Whether all tensors are on the CPU, with memory layouts that the kernel reads and writes."""
    operands = (product.input, product.weight, *([] if product.extra is None else [product.extra]))
    if any(proxy.device.type != "cpu" or proxy.overrides for proxy in (*operands, product.result)):
        return False
    if len({proxy.name for proxy in operands}) < len(operands):
        return False
    constant = (*product.weight.shape, *product.weight.stride)
    return (
        all(isinstance(size, int) for size in constant)
        and min(product.weight.shape) > 0
        and (has_groups(product) if product.kind.in_groups else has_rows(product))
        and row_stride(product.input) is not None
        and is_contiguous(product.result)
    )


def has_rows(product: Product) -> bool:
    """Whether the weight is a matrix with adjacent numbers in each row, and a bias or scales fit the weight."""
    weight, extra = product.weight, product.extra
    adjacent = len(weight.shape) == 2 and (weight.stride[1] == 1 or product.depth == 1)
    return adjacent and (extra is None or is_row(extra, product.columns))


def has_groups(product: Product) -> bool:
    """Whether a weight is in blocks of 4-bit codes, and its scales and zeros fit the blocks."""
    weight, extra = product.weight, product.extra
    if extra is None or [len(weight.shape), len(extra.shape)] != [3, 3]:
        return False
    if not all(isinstance(size, int) for size in extra.shape):
        return False
    blocks = (-(-product.columns // BLOCK), product.depth, BLOCK // 2)
    groups = (product.groups, product.columns, 2)
    fits = tuple(weight.shape) == blocks and tuple(extra.shape) == groups and min(groups) > 0
    return fits and product.depth % product.groups == 0 and is_contiguous(weight) and is_contiguous(extra)


def is_row(proxy: TensorProxy, columns: int) -> bool:
    """Whether a tensor has one number for each column, adjacent in memory, and is not broadcast."""
    return tuple(proxy.shape) == (columns,) and tuple(proxy.stride) == (1,)


def row_stride(proxy: TensorProxy) -> Any | None:
    """Return the distance between consecutive rows in elements; None if it varies, or if elements are not adjacent."""
    sizes, strides = expressions(proxy.shape), expressions(proxy.stride)
    if strides[-1] != 1 and sizes[-1] != 1:
        return None
    dimensions = [(size, stride) for size, stride in zip(sizes[:-1], strides[:-1], strict=True) if size != 1]
    if any(sympy.expand(outer - inner * size) != 0 for (_, outer), (size, inner) in pairwise(dimensions)):
        return None
    return dimensions[-1][1] if dimensions else sizes[-1]


def is_contiguous(proxy: TensorProxy) -> bool:
    """Whether the rows of a tensor follow each other without a gap."""
    stride = row_stride(proxy)
    return stride is not None and sympy.expand(stride - expressions(proxy.shape)[-1]) == 0


def region_text(product: Product, occurrence: RegionOccurrence) -> str:
    """Return the source of a module that defines the region: it allocates the result, and calls the kernel."""
    operands = {"x": product.input, "weight": product.weight, "extra": product.extra, "count": product.count}
    names = RegionNames.of(occurrence, operands)
    rows = " * ".join(f"({names.size(size)})" for size in product.input.shape[:-1]) or "1"
    return TEXT.format(
        title=f"The product of {product.title}",
        entry=ENTRY,
        names=names.arguments,
        shape=names.sizes(product.result.shape),
        stride=names.sizes(product.result.stride),
        function=NAME,
        preparation=PREPARATION if product.kind.prepacked else "",
        weight="packed(weight)" if product.kind.prepacked else "weight",
        dtype=product.kind.result,
        extra="weight" if product.extra is None else "extra",
        rows=rows if product.count is None else "int(count)",
        end="" if product.count is None else ZEROS.format(columns=product.columns),
        depth=product.depth,
        columns=product.columns,
        input_stride=names.size(row_stride(product.input)),
        weight_stride=product.group_length if product.kind.in_groups else product.weight.stride[0],
        has_extra=int(product.extra is not None),
        activation=0 if product.activation is None else product.activation.number,
    )
