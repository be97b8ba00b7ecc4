"""Join linear layers of one normalized row with the norm, if that is measured to be faster.

The norms before the query, key and value projections and before SwiGLU become part of the products that read them,
together with the residual addition before the norm. The weights stay in place: the kernel reads each at its own
address. Linear layers that are not joined here are left to the executor `joined`.

For an absent GPU nothing can be measured. The kernel is then chosen for one row, as in decoding a token: it saves the
launches of the norm and of SwiGLU, and takes the time of reading the weights in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.ir.proxy import TensorProxy, dtype_name
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.joined import arguments_of, joined_linear, plain_linear
from thunder_executors.triton.cache_writes import readers_of
from thunder_executors.triton.gated import gated
from thunder_executors.triton.hugging_face import add_norm, norm, swiglu
from thunder_executors.triton.measurement import OneKernel, always, replace_if_faster
from thunder_executors.triton.normalized_linear import (
    NAMES,
    normalized_gated,
    normalized_gated_kernel,
    normalized_linear,
    normalized_linear_kernel,
)
from thunder_executors.triton.rms_norm import add_rms_norm, rms_norm
from thunder_executors.triton.tensors import is_supported

MAX_ROWS = 4  # the weight is read once for each row, from the L2 cache for all rows but the first
GATE_AND_UP = 2
MATRIX = 2  # dimensions


def norm_linear(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, *matrices: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return linear layers of the RMSNorm of x, or of x + residual, which is then the last result."""
    return tuple(normalized_linear(x, residual, weight, eps, *matrices))


def norm_swiglu(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, *matrices: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return SwiGLU of two linear layers of the RMSNorm of x, or of x + residual, which is then the last result."""
    return tuple(normalized_gated(x, residual, weight, eps, *matrices, "silu"))


@dataclass(frozen=True)
class NormProducts(OneKernel):
    """A norm and the linear layers that read it, with the SwiGLU of two of them if there is one."""

    norm: BoundSymbol
    linears: tuple[BoundSymbol, ...]
    swiglu: BoundSymbol | None = None

    @property
    def bsyms(self) -> tuple[BoundSymbol, ...]:
        """The bound symbols that become one."""
        return (self.norm, *self.linears, *(() if self.swiglu is None else (self.swiglu,)))

    @property
    def inputs(self) -> tuple[TensorProxy, TensorProxy | None, TensorProxy]:
        """The proxies of x, of the residual (or None), and of the norm's weight."""
        x, *residual, weight, _ = self.norm.args
        return x, residual[0] if residual else None, weight

    @property
    def matrices(self) -> tuple[TensorProxy, ...]:
        """The weights of the linear layers; those of gate and up in this order."""
        of = {bsym.output.name: [*arguments_of(bsym)][1] for bsym in self.linears}
        return tuple(of.values()) if self.swiglu is None else tuple(of[proxy.name] for proxy in self.swiglu.args)

    @property
    def proxies(self) -> tuple[TensorProxy, ...]:
        """The proxies of the operands."""
        return tuple(proxy for proxy in (*self.inputs, *self.matrices) if proxy is not None)

    @property
    def eps(self) -> float:
        """The number that the norm adds to the mean of squares."""
        return float(self.norm.args[-1])

    @property
    def output(self) -> tuple[TensorProxy, ...]:
        """The results: products or SwiGLU, and the sum with the residual."""
        products = [bsym.output for bsym in self.linears] if self.swiglu is None else [self.swiglu.output]
        total = () if self.inputs[1] is None else (self.norm.output[1],)
        return (*products, *total)

    @property
    def title(self) -> str:
        """The computation in words: `1 x 2048 to 2048, 512, 512 in bfloat16, with norm, residual`."""
        x, residual, _ = self.inputs
        parts = ("norm", "residual" if residual is not None else "", "SwiGLU" if self.swiglu is not None else "")
        columns = ", ".join(str(matrix.shape[0]) for matrix in self.matrices)
        dtype = dtype_name(x.dtype)
        return f"{rows_in(x)} x {x.shape[-1]} to {columns} in {dtype}, with {', '.join(filter(None, parts))}"

    @property
    def source(self) -> str:
        """The digest of the kernel's source."""
        kernel: Any = normalized_linear_kernel if self.swiglu is None else normalized_gated_kernel
        return str(getattr(kernel, "cache_key", ""))

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether the kernel is chosen if nothing can be measured: for one row."""
        return rows_in(self.inputs[0]) == 1

    @property
    def function(self) -> Any:
        """The function that computes the norm and the products."""
        return norm_linear if self.swiglu is None else norm_swiglu

    def split(self, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return x, the residual or None, the norm's weight, and the weights of the products."""
        x, *rest = operands
        residual = None if self.inputs[1] is None else rest.pop(0)
        return x, residual, rest[0], rest[1:]

    def kernel(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the computation by the kernel."""
        x, residual, weight, matrices = self.split(operands)
        results: tuple[torch.Tensor, ...] = self.function(x, residual, weight, self.eps, *matrices)
        return results

    def library(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the norm's kernel, the product of the executor `joined`, and SwiGLU's kernel."""
        x, residual, weight, matrices = self.split(operands)
        normal, *total = (
            [rms_norm(x, weight, self.eps)] if residual is None else add_rms_norm(x, residual, weight, self.eps)
        )
        products = joined_linear(normal, *matrices)
        return (*(products if self.swiglu is None else [gated(*products, "silu")]), *total)


def join_norm_products(trace: Trace, executor: str) -> Trace:
    """Return the trace with one bound symbol for each norm and the linear layers that read it, if that is faster."""
    found = norm_products_in(trace, executor)
    groups = (((products,), always(replacement(products, executor))) for products in found)
    return replace_if_faster(trace, executor, groups)


def replacement(products: NormProducts, executor: str) -> dict[BoundSymbol, list[BoundSymbol]]:
    """Return the replacements of each bound symbol: one bound symbol for the norm, and none for the others."""
    replaced: dict[BoundSymbol, list[BoundSymbol]] = {bsym: [] for bsym in products.bsyms}
    return replaced | {products.norm: [joined_call(products, executor)]}


def joined_call(match: NormProducts, executor: str) -> BoundSymbol:
    """Return one bound symbol for a norm and the products that read it."""
    function = match.function
    return replace(
        match.norm,
        symbol=Symbol.of_function(function),
        args=(*match.inputs, match.eps, *match.matrices),
        kwargs={},
        output=match.output,
        subsymbols=match.bsyms,
        executor=executor,
    )


def norm_products_in(trace: Trace, executor: str) -> Iterator[NormProducts]:
    """Yield each norm that only linear layers read, with these layers, if the kernel can replace them.

    Autograd must not record them, and no bound symbol may write to their tensors.
    """
    bsyms = trace.bound_symbols
    if not any(is_norm(bsym, executor) for bsym in bsyms):
        return
    readers, written = readers_of(trace), names_written_to(trace)
    recorded = may_be_recorded(trace, tracked_by_autograd(trace))
    for bsym in bsyms:
        row = bsym.outputs[0].name if is_norm(bsym, executor) else ""
        indices = sorted(readers.get(row, ()))
        if not 0 < len(indices) <= len(NAMES) or indices[0] < 0:
            continue
        linears = tuple(bsyms[index] for index in indices)
        if not all(is_product(line, row, trace) for line in linears):
            continue
        each = NormProducts(bsym, linears, swiglu_of(linears, bsyms, readers, executor))
        names = {proxy.name for line in each.bsyms for proxy in (*line.inputs, *line.outputs)}
        is_recorded = any(recorded[index] for index, line in enumerate(bsyms) if line in each.bsyms)
        if not names & written and not is_recorded and fits(each):
            yield each


def is_norm(bsym: BoundSymbol, executor: str) -> bool:
    """Whether a bound symbol is a norm of this executor, with a constant epsilon."""
    is_own = bsym.executor == executor and bsym.symbol.target in (norm, add_norm)
    return is_own and not bsym.kwargs and isinstance(bsym.args[-1], float)


def is_product(bsym: BoundSymbol, row: str, trace: Trace) -> bool:
    """Whether a bound symbol is an unclaimed linear layer of a row, without bias, with the weight of a module."""
    operands = plain_linear(bsym, trace)
    return operands is not None and operands[0].name == row and is_dense_matrix(operands[1])


def is_dense_matrix(proxy: TensorProxy) -> bool:
    """Whether a tensor is a matrix of constant sizes with elements, and the elements of each row are adjacent."""
    is_constant = all(isinstance(size, int) for size in (*proxy.shape, *proxy.stride))
    return is_constant and len(proxy.shape) == MATRIX and 0 not in proxy.shape and proxy.stride[1] == 1


def swiglu_of(
    linears: Sequence[BoundSymbol], bsyms: Sequence[BoundSymbol], readers: Mapping[str, set[int]], executor: str
) -> BoundSymbol | None:
    """Return the SwiGLU that alone reads two linear layers of one shape; None if there is none."""
    indices = {index for line in linears for index in readers.get(line.output.name, {-1})}
    if len(linears) != GATE_AND_UP or len(indices) != 1 or min(indices) < 0:
        return None
    bsym = bsyms[indices.pop()]
    is_swiglu = bsym.executor == executor and bsym.symbol.target is swiglu and not bsym.kwargs
    shapes = {tuple([*arguments_of(line)][1].shape) for line in linears}
    fits_both = is_swiglu and {proxy.name for proxy in bsym.args} == {line.output.name for line in linears}
    return bsym if fits_both and len(shapes) == 1 else None


def fits(match: NormProducts) -> bool:
    """Whether the kernel supports the tensors: few rows of constant sizes, in one dtype."""
    x = match.inputs[0]
    sizes_are_constant = all(isinstance(size, int) for size in x.shape)
    are_floats = all(map(is_supported, match.proxies)) and len({proxy.dtype for proxy in match.proxies}) == 1
    return are_floats and sizes_are_constant and 1 <= rows_in(x) <= MAX_ROWS


def rows_in(proxy: TensorProxy) -> int:
    """Return the number of rows of a tensor of constant sizes."""
    return prod(proxy.shape[:-1])
