"""Symbolic numbers: numbers from outside that differ between calls, and the values of tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.tree import leaves, replace_leaves

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
UNARY = ("neg", "pos", "abs")
COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")
# The attributes of classes of numbers that do not depend on a number's value.
STRUCTURE = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__getnewargs__", "__getformat__", "__sizeof__", "__doc__"}
)


class NumberRecording(Protocol):
    """The recording that a symbolic number belongs to.

    `looked_up` is the number that a container is about to look up, after guards have shown that the number equals none
    of its keys.
    """

    looked_up: SymbolicNumber | None
    outside_values: dict[str, Any]

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return a function's result, as a symbolic number if possible."""

    def decide(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Return the outcome of a comparison, which each call checks."""

    def combine(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return an operator's result for a number and a value of another library, or `NotImplemented`."""

    def simplify_number(self, tree: Any) -> Any:
        """Return nested values with each symbolic number whose value is already guarded replaced by the value."""


class SymbolicNumber:
    """A number whose value is known only when the trace runs; arithmetic with it is recorded as bound symbols.

    If the program branches on a comparison of such numbers, a check in the trace or a guard requires the same outcome
    at each call. `concretize()` returns the number's value in this call and has it guarded, or raises an error.

    A number that comes from outside, or is computed only from such numbers, has a `source`, the path with which the
    prologue gets it. The prologue does the arithmetic with such numbers, and guards the outcomes. `size` is its
    `torch.SymInt` if it is an expression in symbols. A `drawn` number has a new value at each call.
    """

    proxy: Proxy
    numbers: NumberRecording
    kind: type
    concretize: Callable[[], Any]
    source: Any = None
    size: torch.SymInt | None = None
    drawn: bool = False


class Sources(Protocol):
    """The sources of numbers from outside.

    A source is a path to a number, or to a value computed from numbers with paths.
    """

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        """Return the source of a function's result for sources and constants; `value` is the result in this call."""

    def guard(self, source: Any) -> None:
        """Guard the number or condition at a source: it must have the same value at each call."""

    def name(self, source: Any) -> str:
        """Return the name of the number at a source as an input of the trace."""


class SymbolicFloat(SymbolicNumber, torch.SymFloat):
    """A symbolic float, a subclass of PyTorch's symbolic floats, which its operations accept as numbers."""

    kind = float

    def __init__(self, proxy: Proxy, numbers: NumberRecording, concretize: Callable[[], float]) -> None:
        torch.SymFloat.__init__(self, self)  # type: ignore[no-untyped-call]  # C++ calls `guard_float`
        self.proxy, self.numbers, self.concretize = proxy, numbers, concretize

    def guard_float(self, file: str, line: int) -> float:  # noqa: ARG002
        """Return the value to C++ code, and guard it."""
        value: float = self.concretize()
        return value


class SymbolicInteger(SymbolicNumber, torch.SymInt):
    """A symbolic integer, a subclass of PyTorch's symbolic integers, which its operations accept as numbers."""

    kind = int

    def __init__(self, proxy: Proxy, numbers: NumberRecording, concretize: Callable[[], int]) -> None:
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
PREDICATES: tuple[Callable[..., bool], ...] = (math.isnan, math.isinf, math.isfinite)
SYMBOLIC_CLASSES: dict[type, type[Any]] = {float: SymbolicFloat, int: SymbolicInteger}
CONCRETE_TYPES = (int, float, bool)
SCALARS = (int, float, complex)  # and subclasses, such as NumPy's numbers


def _binary_method(
    method_name: str, function: Callable[..., Any], reverse: bool = False
) -> Callable[[SymbolicNumber, Any], Any]:
    """Return the method of a binary operator: it calls `method_name` of `Numbers` if both operands are plain or
    symbolic.
    """

    def method(self: SymbolicNumber, other: Any) -> Any:
        operands = (other, self) if reverse else (self, other)
        if type(other) in CONCRETE_TYPES or isinstance(other, SymbolicNumber):
            return getattr(self.numbers, method_name)(function, operands)
        combined = self.numbers.combine(function, operands)
        if combined is not NotImplemented:
            return combined
        return function(*concrete(operands)) if isinstance(other, SCALARS) else NotImplemented

    return method


def _power(self: SymbolicNumber, other: object, modulus: object = None) -> Any:
    """Return `self ** other`, or `pow(self, other, modulus)` by its value."""
    if modulus is None:
        return _POWER(self, other)
    return pow(*concrete((self, other, modulus)))


_POWER = _binary_method("compute", operator.pow)


def _unary_method(name: str) -> Callable[[SymbolicNumber], Any]:
    return lambda self: self.numbers.compute(getattr(operator, name), (self,))


def _concrete_method(name: str) -> Callable[..., Any]:
    def method(self: SymbolicNumber, *args: Any) -> Any:
        return getattr(self.concretize(), name)(*concrete(args))

    return method


def _concrete_property(name: str) -> Callable[[SymbolicNumber], Any]:
    return lambda self: getattr(self.concretize(), name)


def _round(self: SymbolicNumber, digits: object = None) -> Any:
    if digits is not None and self.kind is float and type(digits) is int:
        return self.numbers.compute(round, (self, digits))
    if digits is not None:
        return round(self.concretize(), concrete(digits))
    return self if self.kind is int else self.numbers.compute(round, (self,))


def _hash(self: SymbolicNumber) -> int:
    """Return the hash for a container lookup. The value is guarded, unless the number is `looked_up`."""
    numbers = self.numbers
    if numbers.looked_up is not self:
        return hash(self.concretize())
    numbers.looked_up = None
    return hash(value_of(self, numbers.outside_values))


def _is_integer(self: SymbolicFloat) -> bool:
    """Whether a float has no fraction; the outcome is guarded."""
    fraction: Any = operator.mod(self, 1)
    return bool(fraction == 0)


def _shift_left(self: SymbolicInteger, other: Any) -> Any:
    value: Any = self.concretize() if type(other) is not int or other < 0 else None
    return self * 2**other if value is None else value << concrete(other)


def _shift_right(self: SymbolicInteger, other: Any) -> Any:
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
    "__lshift__": _shift_left,
    "__rshift__": _shift_right,
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
        setattr(_class, f"__{_name}__", _unary_method(_name))
    _class.__pow__ = _power
    _class.__divmod__ = lambda self, other: (self // other, self % other)
    _class.__round__ = _round
    _class.__hash__ = _hash  # type: ignore[assignment]
    for _name in COMPARING:
        setattr(_class, f"__{_name}__", _binary_method("decide", getattr(operator, _name)))
    _class.__bool__ = lambda self: self.numbers.decide(bool, (self,))
SymbolicFloat.is_integer = _is_integer  # type: ignore[method-assign, assignment]
for _name, _method in BITWISE.items():
    setattr(SymbolicInteger, _name, _method)


def value_of(leaf: object, outside_values: Mapping[str, Any]) -> Any:
    """Return the value of a number from outside in this call; return other values unchanged."""
    if not isinstance(leaf, SymbolicNumber):
        return leaf
    return outside_values[leaf.proxy.name] if leaf.size is None else leaf.size.node.hint


def scalar_kind(fake: torch.Tensor) -> type | None:
    """Return float or int for a fake with one element of this kind and an unknown value, and None otherwise."""
    if fake.numel() != 1 or getattr(fake, "constant", None) is not None or fake.is_complex():
        return None
    return float if fake.is_floating_point() else int if fake.dtype is not torch.bool else None


def numbers_in(tree: object) -> list[Any]:
    """Return the symbolic numbers among nested values, without duplicates, in order."""
    return list({id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, SymbolicNumber)}.values())


def concrete(tree: object) -> Any:
    """Return nested values with symbolic numbers replaced by their values, which are guarded."""
    return replace_leaves(tree, lambda leaf: leaf.concretize() if isinstance(leaf, SymbolicNumber) else leaf)


def to_proxies(tree: object) -> Any:
    """Return nested values with symbolic numbers replaced by their proxies."""
    return replace_leaves(tree, lambda leaf: leaf.proxy if isinstance(leaf, SymbolicNumber) else leaf)
