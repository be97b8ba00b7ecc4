"""Symbolic integers of one recording: sizes and other integers from outside, in a shape environment of PyTorch.

A size or an integer from outside is a symbol. The program computes expressions from symbols, and PyTorch's meta
functions compute with the expressions too. Each decision about an expression, in the program, in PyTorch or in a pass
of the compiler, adds a constraint of the traces.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.fx.experimental.symbolic_shapes import statically_known_true as is_known
from torch.utils._sympy.functions import FloorDiv

from thunder_core.foundation.errors import SourceLine
from thunder_core.foundation.options.symbolic_arguments import Bounds
from thunder_core.tracing.capture.symbolic.numbers import SymbolicFloat, SymbolicInteger, SymbolicNumber
from thunder_core.tracing.capture.symbolic.recorded_numbers import Numbers
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, Origin, TraceShapeEnv, number_of
from thunder_core.tracing.ir.retrace import DecidesForOtherCalls, Retrace
from thunder_core.tracing.ir.sizes import GENERIC_HINT, hint_of, symbolic_dense_strides, symbols_of
from thunder_core.tracing.ir.tree import replace_leaves

NO_BOUNDS: Bounds = (None, None)


class ExpressionInteger(SymbolicInteger):
    """A symbolic integer that the program holds, with the interface of Python's integers."""

    size: torch.SymInt

    def __init__(self, sizes: SymbolicSizes, size: torch.SymInt, numbers: Numbers) -> None:
        torch.SymInt.__init__(self, size.node)  # type: ignore[no-untyped-call]
        self.sizes, self.numbers = sizes, numbers
        self.size = torch.SymInt(size.node)  # type: ignore[no-untyped-call]
        self.concretize = lambda: int(self.size)

    @property
    def proxy(self) -> Any:  # type: ignore[override]
        """The name of the integer in traces."""
        return number_of(self.size)

    @property
    def source(self) -> Any:
        """The source of the number, from which the prologue computes it."""
        return self.sizes.source_of(self.size)


# Functions of integers whose results are expressions.
SYMBOLIC_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
        *(operator.pow, operator.neg, operator.pos, abs, max, min),
    }
)
CONSTANT_SOURCE = object()  # the source of a number that has only one possible value


def greater(left: Any, right: Any) -> Any:
    """Return the greater of two integers: one of them if it is always greater, and an expression otherwise."""
    if is_known(left >= right) or is_known(right >= left):
        return left if is_known(left >= right) else right
    return torch.sym_max(left, right)  # type: ignore[no-untyped-call]


def lesser(left: Any, right: Any) -> Any:
    """Return the lesser of two integers: one of them if it is always less, and an expression otherwise."""
    if is_known(left <= right) or is_known(right <= left):
        return left if is_known(left <= right) else right
    return torch.sym_min(left, right)  # type: ignore[no-untyped-call]


EXTREMES: Mapping[Callable[..., Any], Callable[[Any, Any], Any]] = {max: greater, min: lesser}
DIVISIONS = (operator.floordiv, operator.mod)


def is_quotient(size: object) -> bool:
    """Whether a size is a quotient: PyTorch simplifies `n // 2 // m`, which is only right if `m` is positive."""
    return isinstance(size, torch.SymInt) and isinstance(size.node.expr, FloorDiv)


class SymbolicSizes:
    """The symbols of one recording, and the numbers that are expressions in them.

    `where()` is the present line of the user's program. `places_of(tensor)` maps the symbolic dimensions of a real
    tensor to the sources of their sizes. `strides_of(tensor)` maps dimensions to the sources of strides that do not
    follow from sizes. `expression(expression, sources, value)` returns the source of a value that the prologue computes
    from symbols.

    With `avoid_one_hints`, a size of one gets another hint (`GENERIC_HINT` or more), as if the call had that size,
    unless its source is named in `real_hints_for`. The constraints of the traces may then exclude the call;
    `violated_symbols` returns the symbols of these constraints. Equal sizes of one group (`group_of`) share a symbol.
    With `decides_ones`, PyTorch decides for each size whether it is one.
    """

    def __init__(
        self,
        where: Callable[[], SourceLine | None],
        places_of: Callable[[torch.Tensor], Mapping[int, Any]],
        strides_of: Callable[[torch.Tensor], Mapping[int, Any]],
        expression: Callable[[sympy.Basic, Mapping[sympy.Symbol, Any], int], Any],
        *,
        range_of: Callable[[Any], Bounds] = lambda source: NO_BOUNDS,
        group_of: Callable[[Any], Any] = lambda source: None,
        avoid_one_hints: bool = False,
        decides_ones: bool = False,
        real_hints_for: frozenset[str] = frozenset(),
    ) -> None:
        self.environment = TraceShapeEnv(where)
        self.environment.decides_ones = decides_ones
        self.reads_strides = False  # whether the program reads strides of its results, which differ for sizes of one
        self.avoid_one_hints = avoid_one_hints
        self.real_hints_for = real_hints_for
        self.sources: dict[sympy.Symbol, Any] = {}
        self.values: dict[sympy.Symbol, sympy.Integer] = {}
        self._places_of = places_of
        self._strides_of = strides_of
        self._expression = expression
        self._range_of = range_of
        self._group_of = group_of
        self._groups: dict[Any, torch.SymInt] = {}
        self._ranges: dict[sympy.Symbol, Bounds] = {}
        self._symbols: dict[Any, Any] = {}
        self._computed: dict[sympy.Basic, Any] = {}
        if avoid_one_hints:
            self.environment.call_with_conditions(self._require_for_call)

    # ---- symbols --------------------------------------------------------------------------------------------

    def shape_of(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """Return the shape of a real tensor with its symbols; None if all its sizes are constant."""
        if tensor.layout is not torch.strided:
            return None
        sources = self._places_of(tensor)
        sizes = enumerate(tensor.shape)
        shape = [self._size(sources[at], at, size) if at in sources else size for at, size in sizes]
        return tuple(shape) if any(isinstance(size, torch.SymInt) for size in shape) else None

    def layout_of(self, tensor: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any]] | None:
        """Return the sizes and strides of a real tensor with their symbols; None if all its sizes are constant.

        A stride that does not follow from sizes, because elements are skipped, is a symbol if it differs between calls.
        """
        shape = self.shape_of(tensor)
        if shape is None:
            return None
        sources = self._strides_of(tensor)

        def wider(dim: int, least: object) -> torch.SymInt | None:
            return self._stride(sources[dim], tensor.stride(dim), least) if dim in sources else None

        return shape, symbolic_dense_strides(tensor.stride(), tensor.shape, shape, wider)

    def _stride(self, source: object, value: int, least: object) -> torch.SymInt:
        """Return the symbol of a stride that is at least `least`, so that elements do not overlap."""
        stride = self.symbol(source, value, least=1, hint=max(value, hint_of(least)))
        bool(stride >= least)
        return stride

    def _size(self, source: object, dim: int, size: int) -> torch.SymInt | int:
        """Return the symbol of a size; zero is constant, because PyTorch assumes that symbols of sizes are positive."""
        if not size:
            return size
        special = self.avoid_one_hints and size == 1 and str(source) not in self.real_hints_for
        symbol = self.symbol(source, size, least=1, hint=GENERIC_HINT + dim if special else size)
        if self.environment.decides_ones:
            bool(symbol == 1)
        return symbol

    def symbol(self, source: object, value: int, *, least: int | None = None, hint: int | None = None) -> torch.SymInt:
        """Return the symbol of a number from outside, made at its first use.

        `least` is its least possible value. Decisions use `hint` instead of its value, limited by the given range of
        the source.
        """
        if source not in self._symbols:
            environment, named = self.environment, NamedSource(str(source))
            create = environment.create_unspecified_symbol if least is None else environment.create_symbol
            lower, upper = self._range_of(source)
            hint = value if hint is None else hint if upper is None else min(hint, upper)
            symbol = create(hint, named, DimDynamic.DYNAMIC)
            lower = least if lower is None else lower
            self.sources[symbol], self._ranges[symbol] = source, (lower, upper)
            if self.has_given_range(symbol):
                environment.restrict(symbol, lower, upper)
            self.values[symbol] = sympy.Integer(value)
            size: Any = environment.create_symintnode(symbol, hint=hint, source=named)
            self._symbols[source] = self._shared_symbol(source, value, size)
        existing: torch.SymInt = self._symbols[source]
        return existing

    def _shared_symbol(self, source: object, value: int, size: torch.SymInt) -> torch.SymInt:
        """Return the symbol of the group's first size with this value; equal sizes are constrained to equal it."""
        group = self._group_of(source)
        if group is None:
            return size
        first = self._groups.setdefault((group, value), size)
        return first if first is size or bool(first == size) else size

    def with_float_symbols(self, tree: object, float_by_path: Mapping[str, float]) -> Any:
        """Return nested arguments with symbols for floats from outside, with which a backward may compute."""

        def symbol(leaf: object) -> Any:
            return self.float_symbol(leaf, float_by_path[leaf.proxy.name]) if isinstance(leaf, SymbolicFloat) else leaf

        return replace_leaves(tree, symbol)

    def float_symbol(self, number: SymbolicNumber, value: float) -> torch.SymFloat:
        """Return the symbol of a float from outside, made when an operation first takes it."""
        if number.source not in self._symbols:
            named = NamedSource(str(number.source))
            symbol = self.environment.create_unspecified_symbol(value, named, DimDynamic.DYNAMIC)
            self.sources[symbol], self._ranges[symbol] = number.source, NO_BOUNDS
            self.values[symbol] = sympy.Float(value)
            new: Any = self.environment.create_symfloatnode(symbol, hint=value, source=named)
            self._symbols[number.source] = new
        existing: torch.SymFloat = self._symbols[number.source]
        return existing

    def range_of(self, symbol: sympy.Symbol) -> Bounds:
        """Return the bounds of a symbol: the given range, or else one or more for a size, and no bounds for others."""
        return self._ranges[symbol]

    def has_given_range(self, symbol: sympy.Symbol) -> bool:
        """Whether the user gave the range of a symbol."""
        return self._range_of(self.sources[symbol]) != NO_BOUNDS

    def source_of(self, size: torch.SymInt) -> Any:
        """Return the source of a symbol, or of an expression that the prologue computes from symbols."""
        expression = size.node.expr
        if expression in self.sources or expression.is_number:
            return self.sources.get(expression, CONSTANT_SOURCE)
        if expression not in self._computed:
            sources = {symbol: self.sources[symbol] for symbol in symbols_of(expression)}
            self._computed[expression] = self._expression(expression, sources, size.node.hint)
        return self._computed[expression]

    # ---- constraints ----------------------------------------------------------------------------------------

    def guards(self) -> Iterator[tuple[sympy.Basic, Origin]]:
        """Yield the conditions that were decided, each with the program's line or another reason."""
        guards: Any = self.environment.guards
        yield from ((guard.expr, guard.sloc) for guard in guards)

    def violated_symbols(self) -> frozenset[str]:
        """Return the names of symbols in conditions that fail in the call; prefer conditions on a single symbol."""
        failing = [condition for condition, _ in self.guards() if self._value_of(condition) != sympy.true]
        failing += [number for number in self.environment.numbers if self._value_of(number) is None]
        alone = [condition for condition in failing if len(condition.free_symbols) == 1]
        conditions = alone or failing
        return frozenset(str(self.sources[symbol]) for condition in conditions for symbol in condition.free_symbols)

    def _require_for_call(self, condition: sympy.Basic) -> None:
        """Raise `Retrace` for a condition on one size that does not hold for the call.

        The traced program could not serve the call, so it would be completed, and perhaps compiled, in vain.
        """
        symbols = condition.free_symbols
        if len(symbols) == 1 and symbols <= self.values.keys() and self._value_of(condition) == sympy.false:
            raise Retrace(DecidesForOtherCalls(frozenset(str(self.sources[symbol]) for symbol in symbols)))

    def _value_of(self, expression: sympy.Basic) -> sympy.Basic | None:
        """Return the value of an expression in the call; None if it has no value, as after a division by zero."""
        try:
            value = expression.xreplace(self.values)
        except ZeroDivisionError:
            return None
        return None if value.has(sympy.zoo, sympy.nan) else value

    def in_call(self, number: torch.SymInt | torch.SymFloat) -> int | float:
        """Return the value of a size or another number in the traced call, which may differ from its hint.

        Raises `ZeroDivisionError` if it has no value.
        """
        value = self._value_of(number.node.expr)
        if value is None:
            raise ZeroDivisionError(f"{number} has no value in this call")
        return float(value) if isinstance(number, torch.SymFloat) else int(value)

    def leave_program(self) -> None:
        """Attribute later decisions to passes of the compiler, because the program has ended."""
        self.environment.where = lambda: None
        self.environment.call_with_conditions(lambda condition: None)

    # ---- conversion between PyTorch's symbolic integers and the program's ----

    def to_program(self, output: Any, numbers: Numbers) -> Any:
        """Return a result of PyTorch with each `SymInt` replaced by an `ExpressionInteger`, for the program."""
        if isinstance(output, torch.SymInt) and not isinstance(output, SymbolicInteger):
            expression = output.node.expr
            if expression.is_number:
                return int(expression)
            numbers.has_symbolic = True
            return ExpressionInteger(self, output, numbers)
        if isinstance(output, torch.SymBool):
            return bool(output)
        if type(output) in (tuple, list, torch.Size):
            return type(output)([self.to_program(item, numbers) for item in output])
        return output

    def to_symints(self, tree: object) -> Any:
        """Return nested arguments with each `ExpressionInteger` replaced by a `SymInt`, for PyTorch."""
        return replace_leaves(tree, lambda leaf: leaf.size if isinstance(leaf, ExpressionInteger) else leaf)

    # ---- arithmetic -----------------------------------------------------------------------------------------

    def simplify_number(self, number: ExpressionInteger) -> int | ExpressionInteger:
        """Return a number, or its value if constraints allow no other."""
        expression = number.size.node.expr
        return int(expression) if expression.is_number else number

    def are_integers(self, operands: tuple[Any, ...]) -> bool:
        """Whether operands are integers, and the symbolic ones are expressions in symbols."""
        return all(type(operand) in (int, bool) or isinstance(operand, ExpressionInteger) for operand in operands)

    def is_expression(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the result of a function of numbers is an expression in symbols."""
        if (
            function not in SYMBOLIC_FUNCTIONS
            or not self.are_integers(operands)
            or all(type(operand) is int for operand in operands)
        ):
            return False
        if function in EXTREMES:
            return len(operands) > 1 and all(type(operand) is not bool for operand in operands)
        if function is operator.pow:
            return type(operands[1]) is int and operands[1] >= 0
        return function not in DIVISIONS or bool(self._value(operands[1]))

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], numbers: Numbers) -> Any:
        """Return the expression of a function's result for integers."""
        integers = self._integer_operands(operands)
        if function in DIVISIONS and not integers[1] != 0:  # a constraint; the quotient may not show it: `n // n` is 1
            raise ZeroDivisionError
        if function is operator.floordiv and is_quotient(integers[0]) and not integers[1] > 0:
            integers = [-integers[0], -int(integers[1])]  # the value, because SymPy would cancel the signs of a symbol
        computed = functools.reduce(EXTREMES[function], integers) if function in EXTREMES else function(*integers)
        return self.to_program(computed, numbers)

    def decide(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a condition on integers, which becomes a constraint."""
        integers = self._integer_operands(operands)
        return bool(integers[0] != 0 if function is bool else function(*integers))

    def _integer_operands(self, operands: tuple[Any, ...]) -> list[Any]:
        return [operand.size if isinstance(operand, ExpressionInteger) else int(operand) for operand in operands]

    def _value(self, operand: Any) -> int:
        return int(operand.size.node.hint) if isinstance(operand, ExpressionInteger) else int(operand)


def without_sizes(output: object) -> Any:
    """Return a result without its symbolic integers, which are known before the trace runs."""
    return replace_leaves(output, lambda leaf: None if isinstance(leaf, torch.SymInt) else leaf)
