"""The symbolic numbers of one recording: the numbers from outside, and the bound symbols that compute the other
numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any, NoReturn, Protocol

from thunder_core.tracing.capture.symbolic.numbers import (
    RESULT_CLASSES,
    SYMBOLIC_CLASSES,
    Sources,
    SymbolicNumber,
    concrete,
    numbers_in,
    to_proxies,
    value_of,
)
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.tree import replace_leaves


class HasNumberSources(Protocol):
    """A program that may have numbers from outside."""

    outside_numbers: Sources | None

    def combine_numbers(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return an operator's result for a number and a value of another library, or `NotImplemented`."""


class Numbers:
    """The symbolic numbers of one recording.

    `emit` appends the bound symbols that compute them. `measure(proxy)` returns the value of a bound symbol in this
    call and has it guarded, or raises an error. Numbers from outside are not measured: `from_outside` maps their names
    to the numbers, and `outside_values` maps their names to values in this call. `looked_up` is the number that a
    container is about to look up, after guards have shown that the number equals none of its keys.
    """

    def __init__(
        self,
        program: HasNumberSources,
        sizes: Any,
        next_name: Callable[[], str],
        emit: Callable[[BoundSymbol], None],
        measure: Callable[[Proxy], Any],
        are_values_needed: Callable[[], bool],
    ) -> None:
        self.has_symbolic = False
        self.looked_up: SymbolicNumber | None = None
        self.sizes = sizes
        self._program = program
        self.from_outside: dict[str, SymbolicNumber] = {}
        self.outside_values: dict[str, Any] = {}
        self._concrete: dict[str, Any] = {}
        self._computed: dict[Hashable, SymbolicNumber] = {}
        self._decided: dict[Hashable, bool] = {}
        self._next_name = next_name
        self._emit = emit
        self._measure = measure
        self._are_values_needed = are_values_needed

    def combine(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return an operator's result for a number and a value of another library, or `NotImplemented`."""
        return self._program.combine_numbers(function, operands)

    @property
    def sources(self) -> Sources:
        """The sources of the program's numbers from outside."""
        assert self._program.outside_numbers is not None
        return self._program.outside_numbers

    def number_at_source(self, source: Any, value: Any, *, drawn: bool = False) -> SymbolicNumber:
        """Return the symbolic number at a source; if the program reads its value, the value is guarded.

        If sizes are symbolic, an integer is an expression in symbols, unless it is drawn at each call.
        """
        if self.sizes is not None and type(value) is int and not drawn:
            symbolic: SymbolicNumber = self.sizes.to_program(self.sizes.symbol(source, value), self)
            return symbolic
        self.has_symbolic = True
        sources, name = self.sources, self.sources.name(source)

        def concretize() -> Any:
            sources.guard(source)
            return value

        self.outside_values[name] = value
        number: SymbolicNumber = SYMBOLIC_CLASSES[type(value)](
            Proxy(name, kind=type(value)), self, lambda: self._concretize_once(name, concretize)
        )
        number.source, number.drawn = source, drawn
        self.from_outside[name] = number
        return number

    def unknown_number(self, name: str, kind: type, refuse: Callable[[], NoReturn]) -> SymbolicNumber:
        """Return a number of unknown value with this name; `refuse` raises the error for a read of the value."""
        self.has_symbolic = True
        number: SymbolicNumber = SYMBOLIC_CLASSES[kind](Proxy(name, kind=kind), self, refuse)
        return number

    def new(self, kind: type) -> SymbolicNumber:
        """Return a new symbolic number for the result of a bound symbol to be recorded."""
        self.has_symbolic = True
        proxy = Proxy(self._next_name(), kind=kind)

        def value_of() -> Any:
            return self._concretize_once(proxy.name, lambda: self._measure(proxy))

        number: SymbolicNumber = SYMBOLIC_CLASSES[kind](proxy, self, value_of)
        return number

    def is_expression(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the result of a function of numbers is an expression in symbols, which needs no guard."""
        return self.sizes is not None and self.sizes.is_expression(function, operands)

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function of numbers; the prologue computes it if all numbers come from outside."""
        operands = self.simplify_number(operands)
        if self.is_expression(function, operands):
            return self.sizes.compute(function, operands, self)
        kind = kind_of(function, operands)
        if kind is None or self._are_values_needed():
            return function(*concrete(operands))
        args = to_proxies(operands)
        key = _key(function, args)
        if key not in self._computed:
            if are_from_outside(operands):
                return self._compute_in_prologue(key, function, operands)
            result = self._computed[key] = self.new(kind)
            self._emit(_bound_symbol(function, args, result.proxy))
        return self._computed[key]

    def decide(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a condition on numbers, which must be the same at each call."""
        operands = self.simplify_number(operands)
        if not numbers_in(operands):
            return bool(function(*operands))
        if self.sizes is not None and self.sizes.are_integers(operands):
            decided: bool = self.sizes.decide(function, operands)
            return decided
        args = to_proxies(operands)
        key = _key(function, args)
        if key not in self._decided:
            self._decided[key] = (self._decide_in_prologue if are_from_outside(operands) else self._check)(
                function, operands
            )
        return self._decided[key]

    def _check(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Record a condition on numbers, and return its outcome, which is checked at each call."""
        proxy = Proxy(self._next_name())
        self._emit(_bound_symbol(function, to_proxies(operands), proxy))
        outcome: bool = self._measure(proxy)
        return outcome

    def _decide_in_prologue(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a condition on numbers from outside, and guard it."""
        outcome = bool(function(*self._values(operands)))
        self.sources.guard(self.sources.compute(function, _sources_of(operands), outcome))
        return outcome

    def _compute_in_prologue(self, key: Hashable, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function of numbers from outside; if it raises an error, guard their values."""
        try:
            value = function(*self._values(operands))
        except Exception:
            concrete(operands)
            raise
        if type(value) not in SYMBOLIC_CLASSES:
            return function(*concrete(operands))
        source, drawn = self.sources.compute(function, _sources_of(operands), value), has_drawn_number(operands)
        self._computed[key] = self.number_at_source(source, value, drawn=drawn)
        return self._computed[key]

    def _values(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands with numbers from outside replaced by their values."""
        values: tuple[Any, ...] = replace_leaves(operands, lambda leaf: value_of(leaf, self.outside_values))
        return values

    def _concretize_once(self, name: str, concretize: Callable[[], Any]) -> Any:
        if name not in self._concrete:
            self._concrete[name] = concretize()
        return self._concrete[name]

    def simplify_number(self, tree: Any) -> Any:
        """Return nested values with each symbolic number whose value is already guarded replaced by the value."""

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, SymbolicNumber):
                return leaf
            return self._concrete.get(leaf.proxy.name, leaf) if leaf.size is None else self.sizes.simplify_number(leaf)

        return replace_leaves(tree, value)


def kind_of(function: Callable[..., Any], operands: tuple[Any, ...]) -> type | None:
    """Return the class of a function's result for these operands; None if it depends on their values."""
    if not numbers_in(operands):
        return None
    if function in RESULT_CLASSES and len(operands) == 1:
        return RESULT_CLASSES[function]
    kinds = {operand.kind if isinstance(operand, SymbolicNumber) else type(operand) for operand in operands}
    if float in kinds or function is operator.truediv:
        return float
    positive = isinstance(operands[-1], int) and operands[-1] >= 0
    return int if function is not operator.pow or positive else None


def are_from_outside(operands: tuple[Any, ...]) -> bool:
    """Whether all symbolic numbers among these operands come from outside."""
    return all(number.source is not None for number in numbers_in(operands))


def has_drawn_number(operands: tuple[Any, ...]) -> bool:
    """Whether a number among these operands is drawn at each call."""
    return any(number.drawn for number in numbers_in(operands))


def _sources_of(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(operand.source if isinstance(operand, SymbolicNumber) else operand for operand in operands)


def _key(function: Callable[..., Any], args: tuple[Any, ...]) -> Hashable:
    return (function, *((type(arg), repr(arg)) for arg in args))


def _bound_symbol(function: Callable[..., Any], args: tuple[Any, ...], output: Proxy) -> BoundSymbol:
    module = "operator" if function.__module__ == "_operator" else function.__module__
    return BoundSymbol(Symbol(f"{module}.{function.__name__}", function), args, {}, output)
