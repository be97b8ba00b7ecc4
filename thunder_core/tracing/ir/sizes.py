"""Sizes of tensors in traces: integers, and symbolic integers, which are expressions in PyTorch's symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

INTEGERS = frozenset({int})
GENERIC_HINT = 5  # in place of zero and one


class SymbolicSize(torch.SymInt):
    """A symbolic integer that can be a key: its hash is that of its expression as it was made.

    Whoever compares one with something decides by it, and PyTorch's environment of symbols notes that as a constraint.
    """

    def __hash__(self) -> int:
        return hash(self.node._expr)


def sizes_for_trace(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes as a trace holds them: integers, and symbolic integers that can be keys."""
    return tuple(sizes) if INTEGERS.issuperset(map(type, sizes)) else tuple(map(size_for_trace, sizes))


def size_for_trace(size: Any) -> Any:
    """A size as a trace holds it: an integer, or a symbolic integer that can be a key."""
    if not isinstance(size, torch.SymInt):
        return size
    return int(size.node.expr) if size.node.expr.is_number else SymbolicSize(size.node)  # type: ignore[no-untyped-call]


def comparison_keys(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes as what can be compared without deciding anything: symbolic ones are equal as expressions or not at all."""
    if all(type(size) is int for size in sizes):
        return sizes
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def hint_of(size: Any) -> int:
    """The value that a size had while tracing."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


NO_VALUES: Mapping[sympy.Symbol, int] = {}


def generic_hint_of(size: Any, values: Mapping[sympy.Symbol, int] = NO_VALUES) -> int:
    """A value for a size in which no symbol is zero or one: what it was while tracing, as far as that is neither.

    Symbols that `values` has are given these.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    hints, expression = size.node.shape_env.backed_var_to_val, size.node.expr
    hinted = {symbol: GENERIC_HINT if hints[symbol] in (0, 1) else hints[symbol] for symbol in expression.free_symbols}
    return int(expression.xreplace({**hinted, **values}))


def keep_stride(place: int, least: Any) -> Any:
    """Let a stride that follows from no sizes be what it is."""
    return None


def symbolic_dense_strides(
    strides: Sequence[int],
    examples: Sequence[int],
    shape: Sequence[Any],
    wider: Callable[[int, Any], Any] = keep_stride,
) -> list[Any]:
    """The strides, as expressions of sizes as far as the dimensions lie densely in one another for the examples.

    `strides` are those of a tensor whose sizes are the `examples`; `shape` are the sizes that these are examples of.
    Where elements are left out, as by a slice, `wider(place, least)` gives the stride of a dimension, which is more
    than what the dimensions within it take, and those around it lie densely again; where it is None, all are constants.
    """
    symbolic_strides: list[Any] = list(strides)
    step: Any = 1
    step_of_example = 1
    for place in sorted(range(len(strides)), key=lambda place: (strides[place], examples[place], -place)):
        if not strides[place]:
            continue
        if strides[place] != step_of_example:
            gap = wider(place, step) if 1 < step_of_example < strides[place] else None
            if gap is None:
                break
            step, step_of_example = gap, strides[place]
        symbolic_strides[place] = step
        step, step_of_example = step * shape[place], step_of_example * examples[place]
    return symbolic_strides


def wider_places(strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The dimensions of a tensor in whose steps elements are left out, as by a slice of those within."""
    places: list[int] = []

    def wider(place: int, least: Any) -> int:
        places.append(place)
        return strides[place]

    symbolic_dense_strides(strides, sizes, sizes, wider)
    return places


class Printer(PythonPrinter):
    """Expressions as Python, with names for symbols."""

    def __init__(self, names: Mapping[sympy.Symbol, str]) -> None:
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr: sympy.Symbol) -> str:  # noqa: N802 (sympy's name for it)
        return self._names.get(expr, str(expr))

    def _print_ToFloat(self, expr: sympy.Basic) -> str:  # noqa: N802
        return f"float({self._print(expr.args[0])})"

    def _print_OpaqueUnaryFn_log(self, expr: sympy.Basic) -> str:  # noqa: N802
        return f"math.log({self._print(expr.args[0])})"


NO_NAMES: Mapping[sympy.Symbol, str] = {}


def text_of(expression: sympy.Basic, names: Mapping[sympy.Symbol, str] = NO_NAMES) -> str:
    """An expression as Python, with other names for symbols."""
    return str(Printer(names).doprint(expression))


def symbols_of(expression: sympy.Basic) -> list[sympy.Symbol]:
    """The symbols of an expression in the order of their making: `s0`, `s1`, ..., `s10`."""
    return sorted(expression.free_symbols, key=lambda symbol: (len(str(symbol)), str(symbol)))
