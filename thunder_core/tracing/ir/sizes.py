"""Sizes of tensors in traces: integers, and symbolic integers, which are expressions in PyTorch's symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

INTEGERS = frozenset({int})
GENERIC_HINT = 5  # the value that replaces 0 and 1, for which layouts are special


class SymbolicSize(torch.SymInt):
    """A symbolic integer that can be a dict key: its hash is the hash of its original expression.

    A comparison of symbolic integers is decided for the traced values, and PyTorch's shape environment records the
    decision as a constraint.
    """

    def __hash__(self) -> int:
        return hash(self.node._expr)


def sizes_for_trace(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return sizes for a trace: integers, and symbolic integers that can be dict keys."""
    return tuple(sizes) if INTEGERS.issuperset(map(type, sizes)) else tuple(map(size_for_trace, sizes))


def size_for_trace(size: Any) -> Any:
    """Return a size for a trace: an integer, or a symbolic integer that can be a dict key."""
    if is_symbolic(size):
        return SymbolicSize(size.node)  # type: ignore[no-untyped-call]
    return int(size.node.expr) if isinstance(size, torch.SymInt) else size


def is_symbolic(size: object) -> bool:
    """Whether a size or another integer varies between the calls of a program."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def comparison_keys(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return keys that can be compared without a constraint: keys of symbolic sizes are equal for equal expressions."""
    if all(type(size) is int for size in sizes):
        return sizes
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def expressions(sizes: Iterable[Any]) -> list[Any]:
    """Return sizes as expressions of SymPy; comparing these records no constraint."""
    return [size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in sizes]


def hint_of(size: Any) -> int:
    """Return the value of a size at tracing."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


NO_VALUES: Mapping[sympy.Symbol, int] = {}


def generic_hint_of(size: Any, values: Mapping[sympy.Symbol, int] = NO_VALUES) -> int:
    """Return the value of a size for its symbols' traced values, with `GENERIC_HINT` instead of 0 and 1.

    Symbols in `values` get these values instead.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    hints, expression = size.node.shape_env.backed_var_to_val, size.node.expr
    hinted = {symbol: GENERIC_HINT if hints[symbol] in (0, 1) else hints[symbol] for symbol in expression.free_symbols}
    return int(expression.xreplace({**hinted, **values}))


def keep_stride(dimension: int, least: object) -> Any:
    """Return None for each dimension, so that a stride that does not follow from the sizes is constant."""
    return None


def symbolic_dense_strides(
    strides: Sequence[int],
    examples: Sequence[int],
    shape: Sequence[Any],
    wider: Callable[[int, Any], Any] = keep_stride,
) -> list[Any]:
    """Return strides as expressions of sizes, for dimensions that are dense in memory for the example sizes.

    `examples` are the traced values of the symbolic sizes `shape`, and `strides` the strides of a tensor of the
    `examples` sizes. If a dimension skips elements, as in a slice, `wider(dimension, least)` returns its stride, which
    is greater than `least`, the stride in a dense tensor. Strides of outer dimensions are then expressions of this
    stride and of sizes. If `wider(dimension, least)` returns None, this stride and all greater strides are constant.
    """
    symbolic_strides: list[Any] = list(strides)
    step: Any = 1
    step_of_example = 1
    for dimension in sorted(
        range(len(strides)), key=lambda dimension: (strides[dimension], examples[dimension], -dimension)
    ):
        if not strides[dimension]:
            continue
        if strides[dimension] != step_of_example:
            gap = wider(dimension, step) if 1 < step_of_example < strides[dimension] else None
            if gap is None:
                break
            step, step_of_example = gap, strides[dimension]
        symbolic_strides[dimension] = step
        step, step_of_example = step * shape[dimension], step_of_example * examples[dimension]
    return symbolic_strides


def dimensions_with_gaps(strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the dimensions of a tensor that skip elements, as in a slice of an inner dimension."""
    dimensions: list[int] = []

    def note_gap(dimension: int, least: object) -> int:
        dimensions.append(dimension)
        return strides[dimension]

    symbolic_dense_strides(strides, sizes, sizes, note_gap)
    return dimensions


class Printer(PythonPrinter):
    """A printer of expressions as Python, with names for symbols."""

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
    """Return an expression as Python source, with other names for symbols."""
    return str(Printer(names).doprint(expression))


def symbols_of(expression: sympy.Basic) -> list[sympy.Symbol]:
    """Return the symbols of an expression in the order of creation: `s0`, `s1`, ..., `s10`."""
    return sorted(expression.free_symbols, key=lambda symbol: (len(str(symbol)), str(symbol)))
