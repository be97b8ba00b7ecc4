"""Symbolic numbers: numbers from outside that differ between calls, and the values of tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NoReturn, Protocol

import torch

from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
UNARY = ("neg", "pos", "abs")
COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")
# The attributes of classes of numbers that do not depend on a number's value.
STRUCTURE = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__getnewargs__", "__getformat__", "__sizeof__", "__doc__"}
)


class SymbolicNumber:
    """A number whose value is known only when the trace runs; arithmetic with it is recorded as bound symbols.

    If the program branches on a comparison of such numbers, a check in the trace or a guard requires the same outcome
    at each call. `concretize()` returns the number's value in this call and has it guarded, or raises an error.

    A number that comes from outside, or is computed only from such numbers, has a `source`, the path with which the
    prologue gets it. The prologue does the arithmetic with such numbers, and guards the outcomes. `size` is its
    `torch.SymInt` if it is an expression in symbols. A `drawn` number has a new value at each call.
    """

    proxy: Proxy
    numbers: Numbers
    kind: type
    concretize: Callable[[], Any]
    source: Any = None
    size: torch.SymInt | None = None
    drawn: bool = False


class Sources(Protocol):
    """The sources of numbers from outside; a source is a path to a number, or to a value computed from such numbers."""

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        """Return the source of a function's result for sources and constants; `value` is the result in this call."""

    def guard(self, source: Any) -> None:
        """Guard the number or condition at a source: it must have the same value at each call."""

    def name(self, source: Any) -> str:
        """Return the name of the number at a source as an input of the trace."""


class HasNumberSources(Protocol):
    """A program that may have numbers from outside."""

    number_sources: Sources | None


class SymbolicFloat(SymbolicNumber, torch.SymFloat):
    """A symbolic float, a subclass of PyTorch's symbolic floats, which its operations accept as numbers."""

    kind = float

    def __init__(self, proxy: Proxy, numbers: Numbers, concretize: Callable[[], float]) -> None:
        torch.SymFloat.__init__(self, self)  # type: ignore[no-untyped-call]  # C++ calls `guard_float`
        self.proxy, self.numbers, self.concretize = proxy, numbers, concretize

    def guard_float(self, file: str, line: int) -> float:  # noqa: ARG002
        """Return the value to C++ code, and guard it."""
        value: float = self.concretize()
        return value


class SymbolicInteger(SymbolicNumber, torch.SymInt):
    """A symbolic integer, a subclass of PyTorch's symbolic integers, which its operations accept as numbers."""

    kind = int

    def __init__(self, proxy: Proxy, numbers: Numbers, concretize: Callable[[], int]) -> None:
        torch.SymInt.__init__(self, self)  # type: ignore[no-untyped-call]  # C++ calls `guard_int`
        self.proxy, self.numbers, self.concretize = proxy, numbers, concretize

    def guard_int(self, file: str, line: int) -> int:  # noqa: ARG002
        """Return the value to C++ code, and guard it."""
        value: int = self.concretize()
        return value


# The class of the result of each function of one number.
RESULT_CLASSES: dict[Callable[..., Any], type] = {
    float: float,
    int: int,
    round: int,
    **dict.fromkeys((math.floor, math.ceil, math.trunc), int),
    **dict.fromkeys((math.sqrt, math.exp, math.expm1, math.log, math.log2, math.log10, math.log1p), float),
    **dict.fromkeys((math.sin, math.cos, math.tan, math.tanh, math.fabs), float),
}
MAY_RAISE = frozenset({*RESULT_CLASSES, operator.pow})  # depending on their arguments, besides divisions
PREDICATES: tuple[Callable[..., bool], ...] = (math.isnan, math.isinf, math.isfinite)
SYMBOLIC_CLASSES: dict[type, type[Any]] = {float: SymbolicFloat, int: SymbolicInteger}
PLAIN = (int, float, bool)
SCALARS = (int, float, complex)  # and subclasses, such as NumPy's numbers


def _binary_method(
    method_name: str, function: Callable[..., Any], reverse: bool = False
) -> Callable[[SymbolicNumber, Any], Any]:
    """Return an operator's method, which calls `method_name` of `Numbers` if both operands are plain or symbolic."""

    def method(self: SymbolicNumber, other: Any) -> Any:
        operands = (other, self) if reverse else (self, other)
        if type(other) in PLAIN or isinstance(other, SymbolicNumber):
            return getattr(self.numbers, method_name)(function, operands)
        return function(*concrete(operands)) if isinstance(other, SCALARS) else NotImplemented

    return method


def _power(self: SymbolicNumber, other: Any, modulus: Any = None) -> Any:
    """Return `self ** other`, or `pow(self, other, modulus)` by its value."""
    if modulus is None:
        return _POWER(self, other)
    return pow(*concrete((self, other, modulus)))


_POWER = _binary_method("compute", operator.pow)


def _unary(name: str) -> Callable[[SymbolicNumber], Any]:
    return lambda self: self.numbers.compute(getattr(operator, name), (self,))


def _concrete_method(name: str) -> Callable[..., Any]:
    def method(self: SymbolicNumber, *args: Any) -> Any:
        return getattr(self.concretize(), name)(*concrete(args))

    return method


def _concrete_property(name: str) -> Callable[[SymbolicNumber], Any]:
    return lambda self: getattr(self.concretize(), name)


def _rounded(self: SymbolicNumber, digits: Any = None) -> Any:
    if digits is not None and self.kind is float and type(digits) is int:
        return self.numbers.compute(round, (self, digits))
    if digits is not None:
        return round(self.concretize(), concrete(digits))
    return self if self.kind is int else self.numbers.compute(round, (self,))


def _hash(self: SymbolicNumber) -> int:
    """Return the hash for a container lookup; the value is guarded unless the outcome of the lookup is known."""
    numbers = self.numbers
    if numbers.looked_up is not self:
        return hash(self.concretize())
    numbers.looked_up = None
    return hash(value_of(self, numbers.outside_values))


def _is_integer(self: SymbolicFloat) -> bool:
    """Whether a float has no fraction; the outcome is guarded."""
    fraction: Any = operator.mod(self, 1)
    return bool(fraction == 0)


def _shifted_left(self: SymbolicInteger, other: Any) -> Any:
    value: Any = self.concretize() if type(other) is not int or other < 0 else None
    return self * 2**other if value is None else value << concrete(other)


def _shifted_right(self: SymbolicInteger, other: Any) -> Any:
    value: Any = self.concretize() if type(other) is not int or other < 0 else None
    return self // 2**other if value is None else value >> concrete(other)


def _bitwise_and(self: SymbolicInteger, other: Any) -> Any:
    """Return `self & other` as arithmetic: `n & 7` is `n % 8`, and `n & ~7` is `n - n % 8`."""
    low = (other if other >= 0 else ~other) if type(other) is int else -1
    if low < 0 or low & (low + 1):
        value: Any = self.concretize()
        return value & concrete(other)
    rest: Any = self % (low + 1)
    return rest if other >= 0 else self - rest


# For integers and constants, these operators can be expressed as arithmetic.
BITWISE: dict[str, Callable[..., Any]] = {
    "__lshift__": _shifted_left,
    "__rshift__": _shifted_right,
    "__and__": _bitwise_and,
    "__rand__": _bitwise_and,
    "__invert__": lambda self: -self - 1,
}


for _class in SYMBOLIC_CLASSES.values():
    for _name in vars(_class.kind).keys() - STRUCTURE:
        _is_method = callable(getattr(_class.kind, _name))
        setattr(_class, _name, _concrete_method(_name) if _is_method else property(_concrete_property(_name)))
    for _name in BINARY:
        setattr(_class, f"__{_name}__", _binary_method("compute", getattr(operator, _name)))
        setattr(_class, f"__r{_name}__", _binary_method("compute", getattr(operator, _name), reverse=True))
    for _name in UNARY:
        setattr(_class, f"__{_name}__", _unary(_name))
    _class.__pow__ = _power
    _class.__divmod__ = lambda self, other: (self // other, self % other)
    _class.__round__ = _rounded
    _class.__hash__ = _hash  # type: ignore[assignment]
    for _name in COMPARING:
        setattr(_class, f"__{_name}__", _binary_method("decide", getattr(operator, _name)))
    _class.__bool__ = lambda self: self.numbers.decide(bool, (self,))
SymbolicFloat.is_integer = _is_integer  # type: ignore[method-assign, assignment]
for _name, _method in BITWISE.items():
    setattr(SymbolicInteger, _name, _method)


class Numbers:
    """The symbolic numbers of one recording.

    `emit` appends the bound symbols that compute them. `measure(proxy)` returns the value of a bound symbol in this
    call and has it guarded, or raises an error. Numbers from outside are not measured: `from_outside` has them by name,
    and `outside_values` their values in this call. `looked_up` is the number that a container is about to look up, and
    that is known not to be one of its keys.
    """

    def __init__(
        self,
        program: HasNumberSources,
        sizes: Any,
        next_name: Callable[[], str],
        emit: Callable[[BoundSymbol], None],
        measure: Callable[[Proxy], Any],
    ) -> None:
        self.any_symbolic = False
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
        self.are_values_needed: Callable[[], bool] = lambda: False  # at the present line, by the computations there

    @property
    def sources(self) -> Sources:
        """The sources of the program's numbers from outside."""
        assert self._program.number_sources is not None
        return self._program.number_sources

    def at_source(self, source: Any, value: Any, *, drawn: bool = False) -> SymbolicNumber:
        """Return the symbolic number at a source; if the program reads its value, the value is guarded.

        An integer is an expression in symbols if sizes are, unless it is drawn at each call.
        """
        if self.sizes is not None and type(value) is int and not drawn:
            symbolic: SymbolicNumber = self.sizes.to_program(self.sizes.symbol(source, value), self)
            return symbolic
        self.any_symbolic = True
        sources, name = self.sources, self.sources.name(source)

        def concretize() -> Any:
            sources.guard(source)
            return value

        self.outside_values[name] = value
        number: SymbolicNumber = SYMBOLIC_CLASSES[type(value)](
            Proxy(name, kind=type(value)), self, lambda: self._once(name, concretize)
        )
        number.source, number.drawn = source, drawn
        self.from_outside[name] = number
        return number

    def unknown(self, name: str, kind: type, refuse: Callable[[], NoReturn]) -> SymbolicNumber:
        """Return a number of unknown value with this name; `refuse` raises the error for a read of the value."""
        self.any_symbolic = True
        number: SymbolicNumber = SYMBOLIC_CLASSES[kind](Proxy(name, kind=kind), self, refuse)
        return number

    def new(self, kind: type) -> SymbolicNumber:
        """Return a new symbolic number for the result of a bound symbol to be recorded."""
        self.any_symbolic = True
        proxy = Proxy(self._next_name(), kind=kind)

        def value_of() -> Any:
            return self._once(proxy.name, lambda: self._measure(proxy))

        number: SymbolicNumber = SYMBOLIC_CLASSES[kind](proxy, self, value_of)
        return number

    def is_expression(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the result of a function of numbers is an expression in symbols, which needs no guard."""
        return self.sizes is not None and self.sizes.is_expression(function, operands)

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function of numbers; the prologue computes it if all numbers come from outside."""
        operands = self.simplified(operands)
        if self.is_expression(function, operands):
            return self.sizes.compute(function, operands, self)
        kind = kind_of(function, operands)
        if kind is None or self.are_values_needed():
            return function(*concrete(operands))
        args = to_proxies(operands)
        key = _key(function, args)
        if key not in self._computed:
            if are_from_outside(operands):
                return self._compute_ahead(key, function, operands)
            result = self._computed[key] = self.new(kind)
            self._emit(_bound_symbol(function, args, result.proxy))
        return self._computed[key]

    def decide(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a condition on numbers, which must be the same at each call."""
        operands = self.simplified(operands)
        if not numbers_in(operands):
            return bool(function(*operands))
        if self.sizes is not None and self.sizes.are_integers(operands):
            decided: bool = self.sizes.decide(function, operands)
            return decided
        args = to_proxies(operands)
        key = _key(function, args)
        if key not in self._decided:
            self._decided[key] = (self._decide_ahead if are_from_outside(operands) else self._check)(function, operands)
        return self._decided[key]

    def _check(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Record a condition on numbers, and return its outcome, which is checked at each call."""
        proxy = Proxy(self._next_name())
        self._emit(_bound_symbol(function, to_proxies(operands), proxy))
        outcome: bool = self._measure(proxy)
        return outcome

    def _decide_ahead(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a condition on numbers from outside, and guard it."""
        outcome = bool(function(*self._values(operands)))
        self.sources.guard(self.sources.compute(function, _sources(operands), outcome))
        return outcome

    def _compute_ahead(self, key: Hashable, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function of numbers from outside; if it raises an error, guard their values."""
        try:
            value = function(*self._values(operands))
        except Exception:
            concrete(operands)
            raise
        if type(value) not in SYMBOLIC_CLASSES:
            return function(*concrete(operands))
        source, drawn = self.sources.compute(function, _sources(operands), value), any_drawn(operands)
        self._computed[key] = self.at_source(source, value, drawn=drawn)
        return self._computed[key]

    def _values(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands with numbers from outside replaced by their values."""
        values: tuple[Any, ...] = replace_leaves(operands, lambda leaf: value_of(leaf, self.outside_values))
        return values

    def _once(self, name: str, concretize: Callable[[], Any]) -> Any:
        if name not in self._concrete:
            self._concrete[name] = concretize()
        return self._concrete[name]

    def simplified(self, tree: Any) -> Any:
        """Return nested values with each symbolic number whose value is already guarded replaced by the value."""

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, SymbolicNumber):
                return leaf
            return self._concrete.get(leaf.proxy.name, leaf) if leaf.size is None else self.sizes.simplified(leaf)

        return replace_leaves(tree, value)


def value_of(leaf: Any, outside_values: Mapping[str, Any]) -> Any:
    """Return the value of a number from outside in this call; return other values unchanged."""
    if not isinstance(leaf, SymbolicNumber):
        return leaf
    return outside_values[leaf.proxy.name] if leaf.size is None else leaf.size.node.hint


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


def any_drawn(operands: tuple[Any, ...]) -> bool:
    """Whether a number among these operands is drawn at each call."""
    return any(number.drawn for number in numbers_in(operands))


def _sources(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(operand.source if isinstance(operand, SymbolicNumber) else operand for operand in operands)


def _key(function: Callable[..., Any], args: tuple[Any, ...]) -> Hashable:
    return (function, *((type(arg), repr(arg)) for arg in args))


def _bound_symbol(function: Callable[..., Any], args: tuple[Any, ...], output: Proxy) -> BoundSymbol:
    module = "operator" if function.__module__ == "_operator" else function.__module__
    return BoundSymbol(Symbol(f"{module}.{function.__name__}", function), args, {}, output)


def scalar_kind(fake: torch.Tensor) -> type | None:
    """Return float or int for a fake with one element of this kind and an unknown value, and None otherwise."""
    if fake.numel() != 1 or getattr(fake, "constant", None) is not None or fake.is_complex():
        return None
    return float if fake.is_floating_point() else int if fake.dtype is not torch.bool else None


def numbers_in(tree: Any) -> list[Any]:
    """Return the symbolic numbers among nested values, without duplicates, in order."""
    return list({id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, SymbolicNumber)}.values())


def concrete(tree: Any) -> Any:
    """Return nested values with symbolic numbers replaced by their values, which are guarded."""
    return replace_leaves(tree, lambda leaf: leaf.concretize() if isinstance(leaf, SymbolicNumber) else leaf)


def to_proxies(tree: Any) -> Any:
    """Return nested values with symbolic numbers replaced by their proxies."""
    return replace_leaves(tree, lambda leaf: leaf.proxy if isinstance(leaf, SymbolicNumber) else leaf)
