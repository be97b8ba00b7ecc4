"""Products of groups of rows, each with the weight of its expert: their tensors, and the source of their region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.analysis.named_arguments import arguments_by_name
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_experts.source import NAME
from thunder_executors.packed_linear.product import is_contiguous, row_stride
from thunder_executors.packed_linear.region_names import RegionNames

OPERATION = "torch._grouped_mm"
PARAMETERS = ("input", "mat2", "offs", "bias", "out_dtype")
# Rows that no group has are not written, so the result is allocated as in PyTorch's kernel.
TEXT = """\
\"\"\"The products of {title}.\"\"\"

import torch


def {entry}(args):
    {names} = args
    args.clear()
    result = torch.empty_strided({shape}, {stride}, dtype=torch.float32, device="cpu")
    sizes = ({rows}, {depth}, {columns}, {experts}, {input_stride}, {weight_stride}, {expert_stride})
    {function}(x, weights, offsets, result, *sizes)
    return result
"""


@dataclass(frozen=True)
class ExpertProducts:
    """The products of an input [rows, depth] with the weights [experts, depth, columns] of the rows' experts.

    `offsets` has the end of each expert's rows. In memory, a weight is [columns, depth].
    """

    input: TensorProxy
    weights: TensorProxy
    offsets: TensorProxy
    result: TensorProxy

    @property
    def experts(self) -> int:
        """The number of experts."""
        return int(self.weights.shape[0])

    @property
    def depth(self) -> int:
        """The length of a row of the input."""
        return int(self.weights.shape[1])

    @property
    def columns(self) -> int:
        """The length of a row of the result."""
        return int(self.weights.shape[2])

    @property
    def rows(self) -> int:
        """The number of rows of the input, at the sizes seen while tracing."""
        return hint_of(self.input.shape[0])

    @property
    def title(self) -> str:
        """The products as text: `256 x 512 to 2752, 8 experts`; symbolic rows have the number seen while tracing."""
        return f"{self.rows} x {self.depth} to {self.columns}, {self.experts} experts"


def products_of(bsym: BoundSymbol) -> ExpertProducts | None:
    """Return the products that a bound symbol computes; None if the kernel does not support them or their tensors."""
    arguments = arguments_by_name(bsym, PARAMETERS) or {}
    tensors = (*(arguments.get(name) for name in PARAMETERS[:3]), bsym.output)
    if not all(isinstance(tensor, TensorProxy) for tensor in tensors):
        return None
    if arguments.get("bias") is not None or arguments.get("out_dtype") not in (None, torch.float32):
        return None
    products = ExpertProducts(*tensors)
    return products if has_tensors(products) and has_memory(products) else None


def has_tensors(products: ExpertProducts) -> bool:
    """Whether all tensors are on the CPU, with the dtypes and shapes of the kernel."""
    numbers = (products.input, products.weights, products.result)
    if any(proxy.device.type != "cpu" or proxy.overrides for proxy in (*numbers, products.offsets)):
        return False
    if any(proxy.dtype is not torch.float32 for proxy in numbers) or products.offsets.dtype is not torch.int32:
        return False
    weights, lengths = products.weights, [len(proxy.shape) for proxy in (*numbers, products.offsets)]
    return (
        lengths == [2, 3, 2, 1]
        and all(type(size) is int for size in (*weights.shape, *weights.stride))
        and min(weights.shape) > 0
        and tuple(products.offsets.shape) == (products.experts,)
    )


def has_memory(products: ExpertProducts) -> bool:
    """Whether the kernel reads and writes the memory layouts of the tensors."""
    return (
        tuple(products.offsets.stride) == (1,)
        and products.weights.stride[1] == 1
        and row_stride(products.input) is not None
        and is_contiguous(products.result)
    )


def region_text(products: ExpertProducts, occurrence: RegionOccurrence) -> str:
    """Return the source of a module that defines the region: it allocates the result, and calls the kernel."""
    operands = {"x": products.input, "weights": products.weights, "offsets": products.offsets}
    names, result = RegionNames.of(occurrence, operands), products.result
    expert_stride, _, weight_stride = products.weights.stride
    sizes: dict[str, Any] = {"rows": products.input.shape[0], "input_stride": row_stride(products.input)}
    return TEXT.format(
        title=products.title,
        entry=ENTRY,
        names=names.arguments,
        shape=names.sizes(result.shape),
        stride=names.sizes(result.stride),
        **{name: names.size(size) for name, size in sizes.items()},
        depth=products.depth,
        columns=products.columns,
        experts=products.experts,
        weight_stride=weight_stride,
        expert_stride=expert_stride,
        function=NAME,
    )
