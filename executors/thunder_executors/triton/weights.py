"""Products with quantized weights on CUDA, by kernels that widen codes in registers, if measured to be faster.

For an absent GPU nothing can be measured. The kernel is then chosen for up to `FEW` rows: a product of few rows takes
the time of reading the weight, and PyTorch's operations also write the weight in 16 bits and read it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from thunder_core.backend.quantization.products import IMPLEMENTATIONS
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of, is_symbolic
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.triton.measurement import OneKernel, Replacement, always, replace_if_faster
from thunder_executors.triton.products.split_sums import FEW
from thunder_executors.triton.quantized_linear import (
    TILES,
    int4_linear,
    int4_linear_kernel,
    int8_linear,
    int8_linear_kernel,
)
from thunder_executors.triton.tensors import is_cuda_tensor

MULTIPLICATION = "torch.ops.aten.mul."


def int8_weight_product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor | None, tile: int
) -> torch.Tensor:
    """Compute `torch.ops.thunder.int8_product` of x times the factors of its columns."""
    result: torch.Tensor = int8_linear(x, codes, scales, factors, tile)
    return result


def int4_weight_product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factors: None, tile: int
) -> torch.Tensor:
    """Compute `torch.ops.thunder.int4_product`; there are no factors."""
    assert factors is None
    result: torch.Tensor = int4_linear(x, codes, scales, tile)
    return result


@dataclass(frozen=True)
class Kind:
    """A kind of quantized weights: Thunder's operation, its kernel, the function that runs it, and the codes' dtype."""

    operation: str
    kernel: Any
    function: Callable[..., torch.Tensor]
    codes: torch.dtype
    bits: int

    @property
    def library(self) -> Callable[..., torch.Tensor]:
        """The function that computes the product by PyTorch's operations."""
        return IMPLEMENTATIONS[self.operation]


KINDS = {
    f"torch.ops.thunder.{kind.operation}": kind
    for kind in (
        Kind("int8_product", int8_linear_kernel, int8_weight_product, torch.int8, 8),
        Kind("int4_product", int4_linear_kernel, int4_weight_product, torch.uint8, 4),
    )
}


@dataclass(frozen=True)
class Product(OneKernel):
    """The product of rows with a quantized weight: the kind, and the proxies of its operands."""

    kind: Kind
    x: TensorProxy
    codes: TensorProxy
    scales: TensorProxy
    factors: TensorProxy | None = None
    multiplication: BoundSymbol | None = None  # of x by the factors

    @property
    def rows(self) -> int:
        """The number of rows, at the sizes seen while tracing."""
        return int(hint_of(self.x.shape[0]))

    @property
    def has_any_rows(self) -> bool:
        """Whether the number of rows is symbolic."""
        return is_symbolic(self.x.shape[0])

    @property
    def tile(self) -> int:
        """The rows of a tile."""
        return next((tile for tile in TILES if tile >= self.rows), TILES[-1])

    @property
    def title(self) -> str:
        """The product in words: `1 x 2048 to 8192, with 4-bit weights, groups of 64`."""
        columns, depth = self.scales.shape[-2 if self.kind.bits == 4 else 0], self.x.shape[1]
        groups = f", groups of {depth // self.scales.shape[0]}" if self.kind.bits == 4 else ""
        factors = "" if self.factors is None else " and factors"
        return f"{self.rows} x {depth} to {columns}, with {self.kind.bits}-bit weights{groups}{factors}"

    @property
    def proxies(self) -> tuple[TensorProxy, ...]:
        """The proxies of the operands."""
        return (self.x, self.codes, self.scales, *(() if self.factors is None else (self.factors,)))

    @property
    def source(self) -> str:
        """The digest of the kernel's source."""
        return str(getattr(self.kind.kernel, "cache_key", ""))

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether the kernel is chosen if nothing can be measured: for few rows."""
        return self.rows <= FEW and not self.has_any_rows

    def library(self, *operands: torch.Tensor) -> torch.Tensor:
        """Compute the product by PyTorch's operations, from its operands in order."""
        x, codes, scales, *factors = operands
        return self.kind.library(x * factors[0] if factors else x, codes, scales)

    def kernel(self, *operands: torch.Tensor) -> torch.Tensor:
        """Compute the product by the kernel, from its operands in order."""
        x, codes, scales, *factors = operands
        return self.kind.function(x, codes, scales, factors[0] if factors else None, self.tile)


def claim_products(trace: Trace, executor: str) -> Trace:
    """Return the trace with the kernels in place of the products with quantized weights that they compute faster."""
    if not any(bsym.symbol.name in KINDS for bsym in trace.bound_symbols):
        return trace
    return replace_if_faster(trace, executor, replacements_in(trace, executor))


def replacements_in(trace: Trace, executor: str) -> Iterator[tuple[tuple[Product], Replacement]]:
    """Yield the products that the kernels support, each with the replacements of its bound symbols."""
    recorded = may_be_recorded(trace, tracked_by_autograd(trace))
    multiplications = multiplications_in(trace)
    for bsym, is_recorded in zip(trace.bound_symbols, recorded, strict=True):
        product = None if is_recorded else product_of(bsym, multiplications)
        if product is not None:
            left_out = [] if product.multiplication is None else [product.multiplication]
            replaced = {**{line: [] for line in left_out}, bsym: [kernel_call(bsym, product, executor)]}
            yield (product,), always(replaced)


def multiplications_in(trace: Trace) -> dict[str, BoundSymbol]:
    """Return the multiplications by factors whose results one bound symbol reads, by the names of the results.

    Multiplications whose inputs or results the trace writes to are left out.
    """
    readers = Counter(proxy.name for bsym in trace.bound_symbols for proxy in bsym.inputs)
    readers.update(proxy.name for proxy in trace.outputs)
    written = names_written_to(trace)
    multiplications = {bsym.output.name: bsym for bsym in trace.bound_symbols if is_multiplication(bsym)}
    return {
        name: bsym
        for name, bsym in multiplications.items()
        if readers[name] == 1 and not any(proxy.name in written for proxy in (*bsym.inputs, bsym.output))
    }


def is_multiplication(bsym: BoundSymbol) -> bool:
    """Whether an unclaimed bound symbol multiplies rows (n, depth) by a tensor (depth,), both in bfloat16."""
    operations = bsym.operations
    if bsym.executor or len(operations) != 1 or not operations[0].symbol.name.startswith(MULTIPLICATION):
        return False
    tensors = [argument for argument in operations[0].args if is_cuda_tensor(argument, torch.bfloat16)]
    dimensions = tuple(len(tensor.shape) for tensor in tensors)
    return bsym.is_resolved and len(operations[0].args) == 2 and dimensions == (2, 1)


def product_of(bsym: BoundSymbol, multiplications: Mapping[str, BoundSymbol]) -> Product | None:
    """Return the product of an unclaimed bound symbol, if the kernels support it.

    The kernel for 8 bits includes a multiplication that only the product reads.
    """
    kind = KINDS.get(bsym.symbol.name)
    if kind is None or bsym.executor or bsym.kwargs or not bsym.is_resolved:
        return None
    x, codes, scales = bsym.args
    supported = (
        is_cuda_tensor(x, torch.bfloat16)
        and is_cuda_tensor(codes, kind.codes)
        and is_cuda_tensor(scales, torch.bfloat16)
    )
    constant = supported and not any(map(is_symbolic, (*codes.shape, *scales.shape, x.shape[1])))
    if not constant or not prod((*codes.shape, *scales.shape)):
        return None
    multiplication = multiplications.get(x.name) if kind.bits == 8 else None
    if multiplication is None:
        return Product(kind, x, codes, scales)
    rows, factors = multiplication.operations[0].args
    return Product(kind, rows, codes, scales, factors, multiplication)


def kernel_call(bsym: BoundSymbol, product: Product, executor: str) -> BoundSymbol:
    """Return a bound symbol as a call of the kernel, whose tile fits the number of rows."""
    function = product.kind.function
    symbol = Symbol.of_function(function)
    args = (product.x, product.codes, product.scales, product.factors, product.tile)
    parts = (bsym,) if product.multiplication is None else (product.multiplication, bsym)
    return replace(bsym, symbol=symbol, args=args, subsymbols=parts, executor=executor)
