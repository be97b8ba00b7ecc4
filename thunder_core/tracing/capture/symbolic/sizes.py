"""Symbolic integers of one recording: sizes and other integers from outside, in an environment of PyTorch's.

A size or an integer from outside is a symbol. What the program computes from symbols are expressions, with which the
functions of PyTorch for metadata compute as well. Whatever decides by one, in the program, in PyTorch or in a pass of
the compiler, adds a constraint under which the traces hold.
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
from thunder_core.tracing.capture.symbolic.numbers import Numbers, SymbolicFloat, SymbolicInteger, SymbolicNumber
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, Origin, TraceShapeEnv, number_of
from thunder_core.tracing.ir.sizes import GENERIC_HINT, hint_of, symbolic_dense_strides, symbols_of
from thunder_core.tracing.ir.tree import replace_leaves

NO_BOUNDS: Bounds = (None, None)


class ExpressionInteger(SymbolicInteger):
    """A symbolic integer as the program has it: one of Python's integers, as far as it can tell."""

    size: torch.SymInt

    def __init__(self, sizes: SymbolicSizes, size: torch.SymInt, numbers: Numbers) -> None:
        torch.SymInt.__init__(self, size.node)  # type: ignore[no-untyped-call]
        self.sizes, self.numbers = sizes, numbers
        self.size = torch.SymInt(size.node)  # type: ignore[no-untyped-call]
        self.concretize = lambda: int(self.size)

    @property
    def proxy(self) -> Any:  # type: ignore[override]
        """The name that stands for it in traces."""
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
CONSTANT_SOURCE = object()  # the source of a number that constraints leave but one value


def greater(one: Any, other: Any) -> Any:
    """The greater of two integers: one of them where that is known for all values, and else an expression."""
    if is_known(one >= other) or is_known(other >= one):
        return one if is_known(one >= other) else other
    return torch.sym_max(one, other)  # type: ignore[no-untyped-call]


def lesser(one: Any, other: Any) -> Any:
    """The lesser of two integers: one of them where that is known for all values, and else an expression."""
    if is_known(one <= other) or is_known(other <= one):
        return one if is_known(one <= other) else other
    return torch.sym_min(one, other)  # type: ignore[no-untyped-call]


EXTREMES: Mapping[Callable[..., Any], Callable[[Any, Any], Any]] = {max: greater, min: lesser}
DIVISIONS = (operator.floordiv, operator.mod)


def is_quotient(size: Any) -> bool:
    """Whether a size is a quotient itself: PyTorch makes one of `n // 2 // m`, which is right for an `m` above zero."""
    return isinstance(size, torch.SymInt) and isinstance(size.node.expr, FloorDiv)


class DecidesAgainstCall(BaseException):
    """A program has decided by the hint of a size what does not hold for the size of the call: `violated` names it."""

    def __init__(self, violated: frozenset[str]) -> None:
        super().__init__(f"{', '.join(sorted(violated))}: the program decides otherwise in this call")
        self.violated = violated


class SymbolicSizes:
    """The symbols of one recording, and the numbers that are expressions in them.

    `where()` is the line of the user's program that runs now. `places_of(tensor)` maps the symbolic dimensions of a
    real tensor to the sources of their sizes, `strides_of(tensor)` likewise to those of strides that no sizes make, and
    `expression(expression, sources, value)` makes the source of what the prologue computes from symbols. With
    `avoid_one_hints`, a size of one gets another hint (`GENERIC_HINT` or more), as if the call had that size, unless
    its source is named in `real_hints_for`; the traces may then turn out not to serve the call, which `violated` tells.
    Sizes of one group (`group_of`) that are equal are one symbol. With `decides_ones`, it is decided of each size
    whether it is one.
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
        self.asks_strides = False  # whether the program asks for strides of what it computes, which are others for ones
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
        """The shape of a real tensor with its symbols; None where all of its sizes are constants."""
        if tensor.layout is not torch.strided:
            return None
        places = self._places_of(tensor)
        sizes = enumerate(tensor.shape)
        shape = [self._size(places[at], at, size) if at in places else size for at, size in sizes]
        return tuple(shape) if any(isinstance(size, torch.SymInt) for size in shape) else None

    def layout_of(self, tensor: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any]] | None:
        """The sizes and strides of a real tensor with their symbols; None where all of its sizes are constants.

        A stride that no sizes make, because elements are left out, is a symbol where it differs from call to call.
        """
        shape = self.shape_of(tensor)
        if shape is None:
            return None
        sources = self._strides_of(tensor)

        def wider(place: int, least: Any) -> torch.SymInt | None:
            return self._stride(sources[place], tensor.stride(place), least) if place in sources else None

        return shape, symbolic_dense_strides(tensor.stride(), tensor.shape, shape, wider)

    def _stride(self, source: Any, value: int, least: Any) -> torch.SymInt:
        """The symbol of a stride that is at least so much, so that elements do not overlap."""
        stride = self.symbol(source, value, least=1, hint=max(value, hint_of(least)))
        bool(stride >= least)
        return stride

    def _size(self, source: Any, place: int, size: int) -> torch.SymInt | int:
        """The symbol of a size; zero is a constant, since to PyTorch's environment symbols of sizes are positive."""
        if not size:
            return size
        special = self.avoid_one_hints and size == 1 and str(source) not in self.real_hints_for
        symbol = self.symbol(source, size, least=1, hint=GENERIC_HINT + place if special else size)
        if self.environment.decides_ones:
            bool(symbol == 1)
        return symbol

    def symbol(self, source: Any, value: int, *, least: int | None = None, hint: int | None = None) -> torch.SymInt:
        """The symbol of a number from outside, made when it is met for the first time.

        `least` is the least that it can be, and `hint` what is decided by in place of its value, as far as the range
        goes that the source was given.
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
            self._symbols[source] = self._shared(source, value, size)
        existing: torch.SymInt = self._symbols[source]
        return existing

    def _shared(self, source: Any, value: int, size: torch.SymInt) -> torch.SymInt:
        """The symbol of the first size of the group that has this value, which the others are constrained to equal."""
        group = self._group_of(source)
        if group is None:
            return size
        first = self._groups.setdefault((group, value), size)
        return first if first is size or bool(first == size) else size

    def with_float_symbols(self, tree: Any, known: Mapping[str, float]) -> Any:
        """Nested arguments with symbols for floats from outside, with which a backward may compute."""

        def symbol(leaf: Any) -> Any:
            return self.float_symbol(leaf, known[leaf.proxy.name]) if isinstance(leaf, SymbolicFloat) else leaf

        return replace_leaves(tree, symbol)

    def float_symbol(self, number: SymbolicNumber, value: float) -> torch.SymFloat:
        """The symbol of a float from outside, made when an operation first takes it."""
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
        """The least and the greatest value of a symbol: what was given, else one or more for a size, None for any."""
        return self._ranges[symbol]

    def has_given_range(self, symbol: sympy.Symbol) -> bool:
        """Whether the range of a symbol was given by the user."""
        return self._range_of(self.sources[symbol]) != NO_BOUNDS

    def source_of(self, size: torch.SymInt) -> Any:
        """The source of a symbol, or of what the prologue computes from symbols."""
        expression = size.node.expr
        if expression in self.sources or expression.is_number:
            return self.sources.get(expression, CONSTANT_SOURCE)
        if expression not in self._computed:
            sources = {symbol: self.sources[symbol] for symbol in symbols_of(expression)}
            self._computed[expression] = self._expression(expression, sources, size.node.hint)
        return self._computed[expression]

    # ---- constraints ----------------------------------------------------------------------------------------

    def guards(self) -> Iterator[tuple[sympy.Basic, Origin]]:
        """The conditions that were decided by symbols, each with the program's line, or who needed it behind that."""
        guards: Any = self.environment.guards
        yield from ((guard.expr, guard.sloc) for guard in guards)

    def violated(self) -> frozenset[str]:
        """The names of symbols for which the call is not what was decided: of one alone, where there is such a one."""
        failing = [condition for condition, _ in self.guards() if self._value_of(condition) != sympy.true]
        failing += [number for number in self.environment.numbers if self._value_of(number) is None]
        alone = [condition for condition in failing if len(condition.free_symbols) == 1]
        return frozenset(str(self.sources[symbol]) for one in alone or failing for symbol in one.free_symbols)

    def _require_for_call(self, condition: sympy.Basic) -> None:
        """Raise `DecidesAgainstCall` for a condition on one size that does not hold for the call.

        A recording that goes on would be made, and perhaps compiled, in vain.
        """
        symbols = condition.free_symbols
        if len(symbols) == 1 and symbols <= self.values.keys() and self._value_of(condition) == sympy.false:
            raise DecidesAgainstCall(frozenset(str(self.sources[symbol]) for symbol in symbols))

    def _value_of(self, expression: sympy.Basic) -> sympy.Basic | None:
        """The value of an expression in the call; None where it has none, which Python says of a division by zero."""
        try:
            value = expression.xreplace(self.values)
        except ZeroDivisionError:
            return None
        return None if value.has(sympy.zoo, sympy.nan) else value

    def in_call(self, number: torch.SymInt | torch.SymFloat) -> int | float:
        """The value that a size, or another number, has in the call that is traced, whatever its hint is.

        Raises `ZeroDivisionError` where it has none.
        """
        value = self._value_of(number.node.expr)
        if value is None:
            raise ZeroDivisionError(f"{number} has no value in this call")
        return float(value) if isinstance(number, torch.SymFloat) else int(value)

    def leave_program(self) -> None:
        """The program has been run through: what is decided from now on is decided by passes of the compiler."""
        self.environment.where = lambda: None
        self.environment.call_with_conditions(lambda condition: None)

    # ---- what the program sees ------------------------------------------------------------------------------

    def to_program(self, output: Any, numbers: Numbers) -> Any:
        """A result of PyTorch as the program sees it, with an `ExpressionInteger` in place of each `SymInt`."""
        if isinstance(output, torch.SymInt) and not isinstance(output, SymbolicInteger):
            expression = output.node.expr
            if expression.is_number:
                return int(expression)
            numbers.any_symbolic = True
            return ExpressionInteger(self, output, numbers)
        if isinstance(output, torch.SymBool):
            return bool(output)
        if type(output) in (tuple, list, torch.Size):
            return type(output)([self.to_program(item, numbers) for item in output])
        return output

    def to_symints(self, tree: Any) -> Any:
        """Nested arguments as PyTorch takes them, with a `SymInt` in place of each `ExpressionInteger`."""
        return replace_leaves(tree, lambda leaf: leaf.size if isinstance(leaf, ExpressionInteger) else leaf)

    # ---- arithmetic -----------------------------------------------------------------------------------------

    def simplified(self, number: ExpressionInteger) -> Any:
        """A number, or its value where constraints allow no other."""
        expression = number.size.node.expr
        return int(expression) if expression.is_number else number

    def are_integers(self, operands: tuple[Any, ...]) -> bool:
        """Whether operands are integers of which the symbolic ones are expressions in symbols."""
        return all(type(one) in (int, bool) or isinstance(one, ExpressionInteger) for one in operands)

    def is_expression(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the result of a function of numbers is an expression in symbols."""
        if (
            function not in SYMBOLIC_FUNCTIONS
            or not self.are_integers(operands)
            or all(type(one) is int for one in operands)
        ):
            return False
        if function in EXTREMES:
            return len(operands) > 1 and all(type(one) is not bool for one in operands)
        if function is operator.pow:
            return type(operands[1]) is int and operands[1] >= 0
        return function not in DIVISIONS or bool(self._value(operands[1]))

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], numbers: Numbers) -> Any:
        """The expression that a function gives for integers."""
        integers = self._integers(operands)
        if function in DIVISIONS and not integers[1] != 0:  # a constraint, for the quotient may not tell: `n // n` is 1
            raise ZeroDivisionError
        if function is operator.floordiv and is_quotient(integers[0]) and not integers[1] > 0:
            integers = [-integers[0], -int(integers[1])]  # its value: of a symbol SymPy would cancel the signs
        computed = functools.reduce(EXTREMES[function], integers) if function in EXTREMES else function(*integers)
        return self.to_program(computed, numbers)

    def decide(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """The outcome of a condition on integers, which is a constraint from now on."""
        integers = self._integers(operands)
        return bool(integers[0] != 0 if function is bool else function(*integers))

    def _integers(self, operands: tuple[Any, ...]) -> list[Any]:
        return [one.size if isinstance(one, ExpressionInteger) else int(one) for one in operands]

    def _value(self, operand: Any) -> int:
        return int(operand.size.node.hint) if isinstance(operand, ExpressionInteger) else int(operand)


def without_sizes(output: Any) -> Any:
    """A result without the symbolic integers in it, which are known before the trace runs."""
    return replace_leaves(output, lambda leaf: None if isinstance(leaf, torch.SymInt) else leaf)
