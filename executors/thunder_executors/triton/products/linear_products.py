"""Choose among PyTorch, cuBLASLt and tiles of Thunder's kernels for each linear layer, by measurement.

What reads the layer's result may become part of a kernel: an activation, an addition, or the addition of a residual
before a norm, which then reads the sum. A kernel must be faster than PyTorch's product alone, because another executor
may compute an activation or an addition together with more operations; a norm is computed by the same kernel anyway,
so that the product and the norm are compared with the same of PyTorch.

For a symbolic number of rows, the implementations are compared at some numbers of the range, and each call runs the
choice for its number of rows. For an absent GPU nothing can be measured, and PyTorch computes the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.ir.proxy import TensorProxy, dtype_name
from thunder_core.tracing.ir.sizes import comparison_keys, is_symbolic
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.joined import LINEAR, arguments_of, is_one_row
from thunder_executors.packed_linear.activations import GELU, GELU_TANH, RELU, SILU, activation_of
from thunder_executors.triton.cache_writes import ADDITIONS, readers_of
from thunder_executors.triton.hugging_face import add_norm, norm
from thunder_executors.triton.launch import ALIGNMENT
from thunder_executors.triton.measurement import Replacement, replace_if_faster
from thunder_executors.triton.norm_products import MAX_ROWS, is_dense_matrix, is_norm
from thunder_executors.triton.products.linear import (
    linear,
    matrix_product_kernel,
    reference,
    vector_product_kernel,
)
from thunder_executors.triton.products.split_sums import FEW
from thunder_executors.triton.rms_norm import add_rms_norm, rms_norm
from thunder_executors.triton.tensors import is_supported

CUBLAS_LT = "cuBLASLt"
NAMES = {RELU: "relu", SILU: "silu", GELU: "gelu", GELU_TANH: "gelu_tanh"}
ROWS = (4, 16, 128, 1024, 4096)  # the compared numbers of rows of a symbolic number
Choice: TypeAlias = tuple[int, ...] | str  # a tile, or the name of an implementation of PyTorch

# Tiles by the largest number of rows for which they are compared. The last ones also serve more rows.
WIDEST = 128  # columns of the tiles that compute an activation
VECTORS = ((1, 4, 1024, 4, 0), (1, 8, 512, 4, 0), (1, 16, 256, 4, 0))
TILES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: (),
    FEW: ((16, 32, 128, 4, 4), (16, 64, 128, 4, 4)),
    128: ((64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 64, 8, 3)),
    1 << 62: ((64, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)),
}


def linear_by_tile(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    tile: Sequence[int],
) -> torch.Tensor:
    """Return `activation(x @ weight.T + bias) + residual` by the kernel of a tile."""
    result: torch.Tensor = linear(x, weight, bias, residual, activation, tile)
    return result


def linear_by_cublas_lt(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a linear layer without bias. PyTorch calls cuBLASLt for a product with a bias, which is zero here."""
    rows = x.reshape(-1, x.shape[-1])
    return torch.addmm(x.new_zeros(weight.shape[0]), rows, weight.t()).view(*x.shape[:-1], weight.shape[0])


def linear_by_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, choices: Sequence[tuple[int, Choice]]
) -> torch.Tensor:
    """Return a linear layer by the first choice whose number of rows is not exceeded, or by the last one."""
    rows = prod(x.shape[:-1])
    choice = next((choice for limit, choice in choices if rows <= limit), choices[-1][1])
    if isinstance(choice, str):
        return linear_by_cublas_lt(x, weight) if choice == CUBLAS_LT else functional.linear(x, weight, bias)
    return linear_by_tile(x, weight, bias, None, "", choice)


@dataclass(frozen=True)
class Layer:
    """A linear layer with a number of rows, and the only reader of its result if the kernels include it.

    `addend` is added to the result; `weight_of_norm` and `eps` are those of the norm of the sum.
    """

    x: TensorProxy
    weight: TensorProxy
    bias: TensorProxy | None
    rows: int
    reader: BoundSymbol | None = None
    activation: str = ""
    addend: TensorProxy | None = None
    weight_of_norm: TensorProxy | None = None
    eps: float = 0.0

    @property
    def proxies(self) -> tuple[TensorProxy, ...]:
        """The proxies of the operands, with the number of rows of this layer."""
        rows = [None if proxy is None else with_rows(proxy, self.rows) for proxy in (self.x, self.addend)]
        return tuple(filter(None, (rows[0], self.weight, self.bias, rows[1], self.weight_of_norm)))

    @property
    def title(self) -> str:
        """The layer in words: `1 x 2048 to 8192 in bfloat16, with bias, gelu`."""
        parts = [
            "bias" * (self.bias is not None),
            self.activation,
            "addition" * (self.addend is not None),
            "norm" * (self.weight_of_norm is not None),
        ]
        dtype = dtype_name(self.x.dtype)
        words = ", ".join(filter(None, parts))
        return f"{self.rows} x {self.x.shape[-1]} to {self.weight.shape[0]} in {dtype}{f', with {words}' * bool(words)}"

    @property
    def source(self) -> str:
        """The digests of the kernels' sources."""
        kernels: tuple[Any, ...] = (vector_product_kernel, matrix_product_kernel)
        return " ".join(str(getattr(kernel, "cache_key", "")) for kernel in kernels)

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether a kernel is chosen if nothing can be measured: never."""
        return False

    @property
    def tiles(self) -> Mapping[str, tuple[int, ...]]:
        """The tiles to compare, by name: those of several rows if rows begin at addresses that vectors load from."""
        is_aligned = self.x.shape[-1] % ALIGNMENT == 0 == self.weight.stride[0] % ALIGNMENT
        tiles = tiles_for(self.rows, self.x.dtype, self.activation)
        return {name: tile for name, tile in tiles.items() if is_aligned or tile[0] == 1}

    @property
    def candidates(self) -> Mapping[str, Callable[..., Any]]:
        """The tiles of the kernels, and cuBLASLt for a layer without bias whose result no activation reads."""
        tiles = {name: partial(self.by_tile, tile) for name, tile in self.tiles.items()}
        is_product = self.bias is None and (self.reader is None or self.weight_of_norm is not None)
        return {**tiles, **({CUBLAS_LT: self.by_cublas_lt} if is_product else {})}

    def by_tile(self, tile: tuple[int, ...], *operands: torch.Tensor) -> Any:
        """Run the layer by the kernel of a tile."""
        x, weight, bias, addend, weight_of_norm = self.split(operands)
        total = linear_by_tile(x, weight, bias, addend, self.activation, tile)
        return total if weight_of_norm is None else (rms_norm(total, weight_of_norm, self.eps), total)

    def by_cublas_lt(self, *operands: torch.Tensor) -> Any:
        """Run the layer by cuBLASLt."""
        x, weight, _, addend, weight_of_norm = self.split(operands)
        y = linear_by_cublas_lt(x, weight)
        return y if weight_of_norm is None else add_rms_norm(y, addend, weight_of_norm, self.eps)

    def library(self, *operands: torch.Tensor) -> Any:
        """Run the layer by PyTorch, and the norm by its kernel."""
        x, weight, bias, addend, weight_of_norm = self.split(operands)
        if weight_of_norm is not None:
            return add_rms_norm(functional.linear(x, weight, bias), addend, weight_of_norm, self.eps)
        return reference(x, weight, bias, addend, self.activation, ())

    def baseline(self, *operands: torch.Tensor) -> Any:
        """Run the layer by PyTorch, and the norm by its kernel, without an activation and an addition alone."""
        if self.weight_of_norm is not None:
            return self.library(*operands)
        x, weight, bias, _, _ = self.split(operands)
        return functional.linear(x, weight, bias)

    def split(self, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return x, the weight, the bias, the addend and the norm's weight; None stands for an absent operand."""
        rest = iter(operands)
        present = (self.x, self.weight, self.bias, self.addend, self.weight_of_norm)
        return tuple(None if proxy is None else next(rest) for proxy in present)


def with_rows(proxy: TensorProxy, rows: int) -> TensorProxy:
    """Return a proxy of a matrix with a number of rows, and the columns of another proxy."""
    return replace(proxy, shape=(rows, proxy.shape[-1]), stride=(proxy.shape[-1], 1))


def tiles_for(rows: int, dtype: torch.dtype, activation: str = "") -> dict[str, tuple[int, ...]]:
    """Return the tiles to compare for a number of rows, by name.

    Tensor Cores multiply float32 in less precision, so the tiles of several rows are for 16 bits. An activation needs
    registers next to the sums of a tile, which the widest tile does not leave.
    """
    own = TILES[next(limit for limit in TILES if rows <= limit)] if dtype.itemsize == 2 else ()
    tiles = (*(VECTORS if rows <= MAX_ROWS else ()), *own)
    return {name_of(tile): tile for tile in tiles if tile[1] <= WIDEST or not activation}


def name_of(tile: Sequence[int]) -> str:
    """Return the name of a tile: `triton 64 x 128 x 64, 4 warps, 4 stages`."""
    *sizes, warps, stages = tile
    return f"triton {' x '.join(map(str, sizes))}, {warps} warps{f', {stages} stages' * bool(stages)}"


@dataclass(frozen=True)
class Place:
    """A layer of a trace: its bound symbol, the layer at each compared number of rows, and whether there are several.

    `is_range` states whether the number of rows is symbolic.
    """

    bsym: BoundSymbol
    layers: tuple[Layer, ...]
    is_range: bool

    def replacements(self, executor: str, names: Sequence[str]) -> Mapping[BoundSymbol, list[BoundSymbol]]:
        """Return the replacements of bound symbols for the names of the choices."""
        layer = self.layers[0]
        choices: list[Choice] = [each.tiles.get(name, name) for each, name in zip(self.layers, names, strict=True)]
        operands = (layer.x, layer.weight, layer.bias)
        if self.is_range:
            table = tuple((each.rows, choice) for each, choice in zip(self.layers, choices, strict=True))
            return {self.bsym: [call(self.bsym, linear_by_rows, (*operands, table), executor)]}
        (choice,) = choices
        if choice == CUBLAS_LT:
            return {self.bsym: [call(self.bsym, linear_by_cublas_lt, operands[:2], executor)]}
        arguments = (*operands, layer.addend, layer.activation, choice)
        if layer.reader is None:
            return {self.bsym: [call(self.bsym, linear_by_tile, arguments, executor)]}
        return {self.bsym: [], layer.reader: self.joined_with_reader(layer.reader, arguments, executor)}

    def joined_with_reader(self, reader: BoundSymbol, arguments: tuple[Any, ...], executor: str) -> list[BoundSymbol]:
        """Return the bound symbols of the layer and of the reader of its result, which the kernel includes."""
        if self.layers[0].weight_of_norm is None:
            return [replace(call(reader, linear_by_tile, arguments, executor), subsymbols=(self.bsym, reader))]
        normal, total = reader.output
        addition = addition_in(reader)
        assert addition is not None
        parts = tuple(part for part in reader.subsymbols if part is not addition)
        sum_of_layer = call(reader, linear_by_tile, arguments, executor)
        norm_of_sum = call(reader, norm, (total, *reader.args[2:]), executor)
        return [
            replace(sum_of_layer, output=total, subsymbols=(self.bsym, addition)),
            replace(norm_of_sum, output=normal, subsymbols=parts),
        ]


def call(bsym: BoundSymbol, function: Callable[..., Any], args: tuple[Any, ...], executor: str) -> BoundSymbol:
    """Return a bound symbol as a call of another function."""
    symbol = Symbol.of_function(function)
    return replace(bsym, symbol=symbol, args=args, kwargs={}, subsymbols=(bsym,), executor=executor)


def claim_linear_layers(trace: Trace, executor: str, budget: TuningBudget, *, after_norms: bool) -> Trace:
    """Return the trace with the fastest implementation of each linear layer that autograd does not record.

    With `after_norms`, these are the layers of few rows that read a norm, which no kernel has joined with the norm.
    Otherwise, these are all other layers.
    """
    if not any(bsym.symbol.name == LINEAR and not bsym.executor for bsym in trace.bound_symbols):
        return trace
    groups: Iterator[tuple[tuple[Layer, ...], Replacement]] = (
        (place.layers, partial(place.replacements, executor))
        for place in places_in(trace, executor, after_norms=after_norms)
    )
    return replace_if_faster(trace, executor, groups, budget)


def places_in(trace: Trace, executor: str, *, after_norms: bool) -> Iterator[Place]:
    """Yield the linear layers that the implementations support.

    Layers of few rows that read the same row are left to the executor `joined`.
    """
    written = names_written_to(trace)
    recorded = dict(zip(trace.bound_symbols, may_be_recorded(trace, tracked_by_autograd(trace)), strict=True))
    free = {bsym for bsym, is_recorded in recorded.items() if not (is_recorded or touches(bsym, written))}
    normal = {bsym.outputs[0].name for bsym in trace.bound_symbols if is_norm(bsym, executor)}
    layers = {bsym: layer for bsym in trace.bound_symbols if bsym in free and (layer := layer_of(bsym)) is not None}
    inputs, readers = Counter(layer.x.name for layer in layers.values()), readers_of(trace)
    for bsym, layer in layers.items():
        sizes = tuple(replace(layer, rows=rows) for rows in row_counts(layer.x))
        has_few_rows = sizes[-1].rows <= MAX_ROWS or is_one_row(layer.x)
        reads_norm = has_few_rows and layer.x.name in normal
        if reads_norm != after_norms or (has_few_rows and inputs[layer.x.name] > 1):
            continue
        is_range = is_symbolic(prod(layer.x.shape[:-1]))
        reader = None if is_range else only_reader(bsym, trace, readers)
        if reader in free:
            sizes = (with_reader(sizes[0], bsym.output, reader, executor) or sizes[0],)
        if any(each.candidates for each in sizes):
            yield Place(bsym, sizes, is_range)


def touches(bsym: BoundSymbol, written: Collection[str]) -> bool:
    """Whether a bound symbol reads or returns one of the tensors that the trace writes to."""
    return any(proxy.name in written for proxy in (*bsym.inputs, *bsym.outputs))


def only_reader(bsym: BoundSymbol, trace: Trace, readers: Mapping[str, set[int]]) -> BoundSymbol | None:
    """Return the bound symbol that alone reads the result of another one; None if there are others, or an output."""
    indices = readers.get(bsym.output.name, {-1})
    return trace.bound_symbols[min(indices)] if len(indices) == 1 and min(indices) >= 0 else None


def layer_of(bsym: BoundSymbol) -> Layer | None:
    """Return the layer of an unclaimed bound symbol, if the kernels support its tensors, which have one dtype."""
    if bsym.executor or bsym.symbol.name != LINEAR or bsym.mutates or not bsym.is_resolved:
        return None
    x, weight, bias = [*arguments_of(bsym), None][:3]
    operands = [proxy for proxy in (x, weight, bias) if proxy is not None]
    if not all(map(is_supported, operands)) or len({proxy.dtype for proxy in (*operands, bsym.output)}) > 1:
        return None
    is_row = bias is None or not any(map(is_symbolic, bias.shape))
    is_constant = isinstance(x.shape[-1], int) and is_dense_matrix(weight) and is_row
    has_rows = all(is_symbolic(size) or size > 0 for size in x.shape[:-1])
    return Layer(x, weight, bias, 0) if is_constant and has_rows else None


def row_counts(x: TensorProxy) -> tuple[int, ...]:
    """Return the number of rows, or the numbers to compare for a symbolic number."""
    rows: Any = prod(x.shape[:-1])
    if not isinstance(rows, torch.SymInt):
        return (rows,)
    bounds = rows.node.shape_env.bound_sympy(rows.node.expr)
    lower, upper = (int(bound) if bound.is_Integer else None for bound in (bounds.lower, bounds.upper))
    largest = ROWS[-1] if upper is None else min(max(1, upper), ROWS[-1])
    first = next((index for index, count in enumerate(ROWS) if count >= (lower or 1)), len(ROWS) - 1)
    return (*(count for count in ROWS[first:] if count < largest), largest)


def with_reader(layer: Layer, result: TensorProxy, reader: BoundSymbol, executor: str) -> Layer | None:
    """Return a layer with the only reader of its result, if the kernels include it: an activation, a sum or a norm."""
    activation = activation_of(reader)
    if activation is not None:
        fits = reader.output.dtype == layer.x.dtype
        return replace(layer, reader=reader, activation=NAMES[activation]) if fits else None
    if reader.executor == executor and reader.symbol.target is add_norm and not reader.kwargs:
        *terms, weight, eps = reader.args
        addend = other_term(terms, result)
        if addend is None or not isinstance(eps, float) or addition_in(reader) is None:
            return None
        return replace(layer, reader=reader, addend=addend, weight_of_norm=weight, eps=eps)
    if reader.symbol.name in ADDITIONS and not (reader.executor or reader.kwargs or reader.mutates):
        addend = other_term(reader.args, result)
        fits = addend is not None and reader.is_resolved and reader.output.dtype == layer.x.dtype
        return replace(layer, reader=reader, addend=addend) if fits else None
    return None


def other_term(terms: Sequence[Any], result: TensorProxy) -> TensorProxy | None:
    """Return the tensor that is added to a layer's result, if it has the same shape, dtype and device."""
    others = [term for term in terms if not (isinstance(term, TensorProxy) and term.name == result.name)]
    if len(terms) != 2 or len(others) != 1 or not isinstance(others[0], TensorProxy):
        return None
    (other,) = others
    same = (other.dtype, other.device) == (result.dtype, result.device)
    return other if same and comparison_keys(other.shape) == comparison_keys(result.shape) else None


def addition_in(reader: BoundSymbol) -> BoundSymbol | None:
    """Return the part of a norm of a sum that computes the sum, its second result; None if none does alone."""
    total = reader.output[1].name
    parts = [part for part in reader.subsymbols if any(proxy.name == total for proxy in part.defines)]
    return parts[0] if len(parts) == 1 and len(parts[0].defines) == 1 else None
