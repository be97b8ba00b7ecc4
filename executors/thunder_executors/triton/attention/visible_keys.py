"""Masks of attention that show the keys up to a last key, proved from the operations that compute them.

Such a mask compares the indices of the keys, `torch.arange(keys)`, with one number for each sequence. Changes of shape
and the addition of 0 do not matter. Nothing is assumed about the number, which the kernel reads from memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

import sympy
import torch

from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy
from thunder_core.tracing.ir.sizes import expressions
from thunder_core.tracing.ir.symbol import BoundSymbol

ATEN = "torch.ops.aten."
# Operations that keep the elements and their order, if the number of elements is the same.
RESHAPES = frozenset(
    ATEN + name
    for name in ("unsqueeze", "squeeze", "view", "_unsafe_view", "_reshape_alias", "expand", "slice", "alias", "detach")
)
EXPAND, ARANGE, ADD = ATEN + "expand", ATEN + "arange", ATEN + "add"
# The comparisons of keys with a last key: whether the keys come first, and what is added to the number to get the key.
COMPARISONS = {ATEN + "le": (True, 0), ATEN + "lt": (True, -1), ATEN + "ge": (False, 0), ATEN + "gt": (False, -1)}


@dataclass(frozen=True)
class LastKey:
    """The number that a mask compares with the indices of keys: the keys up to `number + offset` are visible.

    `indices` are the bound symbols in the trace that compute the mask from the number.
    """

    number: TensorProxy
    offset: int
    indices: tuple[int, ...]


# The aten operations of a trace by the names of their results, each with the index of its bound symbol.
Producers: TypeAlias = Mapping[str, tuple[BoundSymbol, int]]


def producers_of(bsyms: Sequence[BoundSymbol]) -> Producers:
    """Return the aten operations of unclaimed bound symbols without effects."""
    return {
        result.name: (operation, index)
        for index, bsym in enumerate(bsyms)
        if not (bsym.executor or bsym.has_effect)
        for operation in bsym.at_level("aten")
        for result in operation.defines
    }


@dataclass(frozen=True)
class Operations:
    """The aten operations of a trace, and the indices of the bound symbols whose operations were looked up."""

    producers: Producers
    used: set[int] = field(default_factory=set)

    def producer(self, proxy: object) -> BoundSymbol | None:
        """Return the operation that computes a tensor; None if there is none."""
        if not isinstance(proxy, TensorProxy) or proxy.name not in self.producers:
            return None
        operation, index = self.producers[proxy.name]
        self.used.add(index)
        return operation


def last_key(
    bsyms: Sequence[BoundSymbol], producers: Producers, mask: TensorProxy, written: Collection[str]
) -> LastKey | None:
    """Return the last visible key of a mask (batch or 1, 1, 1, keys); None if the mask is not proved to have one.

    `written` are the names whose memory the trace writes to, at any time.
    """
    operations = Operations(producers)
    comparison = comparison_of(operations, mask)
    if comparison is None:
        return None
    are_first, offset = COMPARISONS[comparison.symbol.packet_name]
    left, right = comparison.args
    keys, number = (left, right) if are_first else (right, left)
    if not (is_number_for_each_row(number, mask) and are_key_indices(operations, keys, mask.shape[-1])):
        return None
    indices = tuple(sorted(operations.used))
    is_read = any(proxy.name == number.name for index in indices for proxy in bsyms[index].inputs)
    names = {number.name, *(proxy.name for index in indices for proxy in bsyms[index].defines)}
    return LastKey(number, offset, indices) if is_read and not names & set(written) else None


def comparison_of(operations: Operations, mask: TensorProxy) -> BoundSymbol | None:
    """Return the comparison of two operands whose rows are those of a mask; None if there is none."""
    operation = operations.producer(mask)
    while operation is not None and operation.symbol.packet_name in RESHAPES:
        source, result = operation.args[0], operation.output
        is_repeated_row = operation.symbol.packet_name == EXPAND and is_row(source)
        has_same_keys = expressions(source.shape[-1:]) == expressions(result.shape[-1:])
        if not (has_same_keys and (is_repeated_row or elements(source) == elements(result))):
            return None
        operation = operations.producer(source)
    is_comparison = operation is not None and operation.symbol.packet_name in COMPARISONS
    return operation if is_comparison else None


def is_number_for_each_row(number: object, mask: TensorProxy) -> TypeGuard[TensorProxy]:
    """Whether a tensor has one integer for each row of a mask, or one for all rows, and no dimension of keys."""
    return (
        isinstance(number, TensorProxy)
        and (number.dtype, number.device) == (torch.int64, mask.device)
        and expressions(number.shape[-1:]) in ([], [1])
        and elements(number) in (1, *expressions(mask.shape[:1]))
    )


def are_key_indices(operations: Operations, proxy: object, count: Any) -> bool:
    """Whether a tensor is a row with the numbers from 0 to `count` - 1."""
    if not is_row(proxy) or proxy.dtype != torch.int64 or expressions(proxy.shape[-1:]) != expressions((count,)):
        return False
    operation = operations.producer(proxy)
    name = "" if operation is None else operation.symbol.packet_name
    if operation is None or name == ARANGE:
        return operation is not None and is_range(operation.args, count)
    adds_zero = name == ADD and type(operation.args[1]) is int and operation.args[1] == 0
    return (adds_zero or name in RESHAPES) and are_key_indices(operations, operation.args[0], count)


def is_range(args: Sequence[Any], count: Any) -> bool:
    """Whether the arguments of `arange` are those of the numbers from 0 to `count` - 1."""
    values = [argument.value if isinstance(argument, NumberProxy) else argument for argument in args]
    if not all(type(value) is int or isinstance(value, torch.SymInt) for value in values):
        return False
    return expressions(values) in [expressions(row) for row in ((count,), (0, count), (0, count, 1))]


def is_row(proxy: object) -> TypeGuard[TensorProxy]:
    """Whether all sizes of a tensor are 1 except the last."""
    return (
        isinstance(proxy, TensorProxy)
        and bool(proxy.shape)
        and all(size == 1 for size in expressions(proxy.shape[:-1]))
    )


def elements(proxy: TensorProxy) -> Any:
    """Return the number of elements of a tensor, as an expression of its symbolic sizes."""
    return sympy.expand(sympy.prod(expressions(proxy.shape)))
