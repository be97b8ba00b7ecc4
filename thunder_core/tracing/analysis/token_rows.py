"""Rows of tokens in a trace: which operations compute each row of their result from the same rows of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

from thunder_core.tracing.analysis.named_arguments import arguments_by_name, named_arguments
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import expressions
from thunder_core.tracing.ir.symbol import BoundSymbol

LINEAR = "torch.nn.functional.linear"
LINEAR_PARAMETERS = ("input", "weight", "bias")
ATEN = torch.ops.aten
RESHAPES = frozenset(
    f"torch.Tensor.{name}" for name in ("view", "reshape", "flatten", "unflatten", "contiguous", "clone")
)
# A dimension of a tensor: the results of a function of it are the same dimension in the result, or None.
Tracked = int | None


def sizes_of(proxy: TensorProxy) -> list[Any]:
    """Return the sizes of a tensor as expressions, which can be compared without a constraint."""
    return [sympy.expand(size) for size in expressions(proxy.shape)]


def is_contiguous(proxy: TensorProxy) -> bool:
    """Whether a tensor of any size is contiguous; dimensions of size 1 may have any stride."""
    expected: Any = sympy.Integer(1)
    for size, stride in zip(reversed(sizes_of(proxy)), reversed(expressions(proxy.stride)), strict=True):
        if size != 1 and sympy.expand(stride - expected) != 0:
            return False
        expected = expected * size
    return True


def operations_of(bsym: BoundSymbol) -> tuple[Any, ...]:
    """Return the operators of PyTorch that a bound symbol consists of."""
    return tuple(operation.symbol.target for operation in bsym.operations)


def is_elementwise(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol computes each element of its only result from the same elements of its operands."""
    operations = operations_of(bsym)
    return bool(operations) and all(
        isinstance(operation, torch._ops.OpOverload)
        and (torch.Tag.pointwise in operation.tags or operation is ATEN._to_copy.default)
        and torch.Tag.nondeterministic_seeded not in operation.tags
        for operation in operations
    )


def reduces_last_dimension(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol computes each row of its result from a row of its first operand: a norm or a mean."""
    operations = operations_of(bsym)
    if len(operations) != 1 or not isinstance(operations[0], torch._ops.OpOverload):
        return False
    arguments = named_arguments(operations[0], bsym.operations[0].args, bsym.operations[0].kwargs)
    if operations[0] in (ATEN.mean.dim, ATEN.sum.dim_IntList):
        rank = len(arguments["self"].shape)
        return bool(arguments["keepdim"]) and arguments["dim"] in ([-1], (-1,), [rank - 1], (rank - 1,))
    return operations[0] is ATEN.native_layer_norm.default and len(arguments["normalized_shape"]) == 1


def linear_arguments(bsym: BoundSymbol) -> list[Any]:
    """Return the input, weight and bias of a linear layer."""
    named = arguments_by_name(bsym, LINEAR_PARAMETERS) or {}
    return [named.get(name) for name in LINEAR_PARAMETERS]


def is_plain(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol computes one tensor in eager PyTorch, without effects, functions or casts by autocast."""
    return (
        isinstance(bsym.output, TensorProxy)
        and not (bsym.executor or bsym.mutates or bsym.keeps_position or bsym.functions)
        and bsym.is_resolved
    )


def operand_dimension(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    """Return the dimension of an operand whose rows determine the rows of dimension `dim` of the result.

    None if each row of the result may depend on the whole operand. The bound symbol has one result.
    """
    rule = next((rule for applies, rule in RULES if applies(bsym)), None)
    return None if rule is None else rule(bsym, operand, dim)


def _of_elementwise(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    own = dim - (len(bsym.output.shape) - len(operand.shape))
    return own if own >= 0 and sizes_of(operand)[own] == sizes_of(bsym.output)[dim] else None


def _of_last_dimension(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    is_first = operand is bsym.inputs[0] and len(operand.shape) == len(bsym.output.shape)
    return dim if is_first and dim < len(operand.shape) - 1 else None


def _of_linear(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    x, weight, bias = linear_arguments(bsym)
    is_input = operand.name == x.name and all(other is None or other.name != x.name for other in (weight, bias))
    return dim if is_input and dim < len(operand.shape) - 1 else None


def _of_transposition(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    first, second = (int(index) % len(operand.shape) for index in bsym.operations[0].args[1:3])
    return {first: second, second: first}.get(dim, dim)


def _of_reshape(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    """Return the dimension with the same size, and the same number of elements before it."""
    before, after = sizes_of(operand), sizes_of(bsym.output)
    equal = [
        own
        for own, size in enumerate(before)
        if size == after[dim] and sympy.expand(math.prod(before[:own]) - math.prod(after[:dim])) == 0
    ]
    return dim if dim in equal else next((own for own in equal if before[own] != 1), None)


def _of_part_of_rows(bsym: BoundSymbol, operand: TensorProxy, dim: int) -> Tracked:
    """Return the same dimension, for a slice of the last dimension, or tensors joined along the last dimension."""
    return dim if len(operand.shape) == len(bsym.output.shape) and dim < len(operand.shape) - 1 else None


def _slices_last_dimension(bsym: BoundSymbol) -> bool:
    if operations_of(bsym) != (ATEN.slice.Tensor,):
        return False
    rank = len(bsym.inputs[0].shape)  # type: ignore[attr-defined]  # the operand is a tensor
    return int(bsym.operations[0].args[1]) % rank == rank - 1


def _joins_last_dimension(bsym: BoundSymbol) -> bool:
    if operations_of(bsym) != (ATEN.cat.default,):
        return False
    rank = len(bsym.output.shape)
    arguments = named_arguments(ATEN.cat.default, bsym.operations[0].args, bsym.operations[0].kwargs)
    return int(arguments["dim"]) % rank == rank - 1


Rule = Callable[[BoundSymbol, TensorProxy, int], Tracked]
RULES: tuple[tuple[Callable[[BoundSymbol], bool], Rule], ...] = (
    (lambda bsym: bsym.symbol.name == LINEAR, _of_linear),
    (lambda bsym: operations_of(bsym) == (ATEN.transpose.int,), _of_transposition),
    (lambda bsym: bsym.symbol.name in RESHAPES, _of_reshape),
    (_slices_last_dimension, _of_part_of_rows),
    (_joins_last_dimension, _of_part_of_rows),
    (reduces_last_dimension, _of_last_dimension),
    (is_elementwise, _of_elementwise),
)


def tensors_read(bsym: BoundSymbol) -> Iterator[TensorProxy]:
    """Yield the tensors that a bound symbol reads."""
    yield from (proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy))


def selected_row(bsym: BoundSymbol) -> tuple[int, int] | None:
    """Return the dimension and the index of the only row that an indexing reads; None for another bound symbol.

    The index is not negative, or -1 for the last row.
    """
    if bsym.symbol.name != "torch.Tensor.__getitem__" or len(bsym.args) != 2 or not isinstance(bsym.args[1], tuple):
        return None
    rows = [(dim, row_of(entry)) for dim, entry in enumerate(bsym.args[1]) if entry != slice(None)]
    if len(rows) != 1 or rows[0][1] is None:
        return None
    return rows[0][0], rows[0][1]


def row_of(entry: object) -> int | None:
    """Return the index of the row that an entry of an index selects; None for another entry."""
    if type(entry) is int:
        return entry if entry >= -1 else None
    if not isinstance(entry, slice) or entry.step not in (None, 1) or type(entry.start) is not int:
        return None
    if entry.start == -1 and entry.stop is None:
        return -1
    return entry.start if entry.start >= 0 and entry.stop == entry.start + 1 else None
