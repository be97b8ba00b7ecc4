"""Placeholders: arguments for a pattern's function that have neither data nor metadata.

Every operation on a placeholder returns another placeholder that records the call. A value that depends on a tensor's
metadata (`x.shape[-1] // 2`, `x.dtype`) is a *fact*, which is unknown until a match is tried.
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn, TypeGuard

import torch

from thunder_core.backend.patterns.spelling import family, named_arguments, overloads
from thunder_core.tracing.capture.torch_facts.symbols import is_ordered, symbol_of
from thunder_core.tracing.ir.tree import leaves

MISSING = object()

TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
FACT_METHODS = frozenset(
    {"size", "dim", "numel", "stride", "ndimension", "nelement", "element_size", "storage_offset", "get_device"}
    | {"is_floating_point", "is_complex", "is_contiguous", "is_signed"}
)
VALUE_METHODS = frozenset({"item", "tolist", "numpy", "data_ptr", "nonzero", "masked_select", "unique"})
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
INDEXING = ("getitem",)
UNARY = ("neg", "abs", "invert", "pos")


class PatternRefused(Exception):
    """Raised if a pattern's function calls an operation that is not allowed; the message names the operation."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter of the pattern. `kind` is the type that its values must have (a tensor, an int, a float), or None."""

    name: str
    kind: type | None = None


@dataclass(frozen=True, eq=False)
class PlaceholderCall:
    """One call of a torch function: its family, and its arguments by name."""

    function: Callable[..., Any]
    family: str
    arguments: Mapping[str, Any]

    @property
    def first(self) -> Any:
        """The argument that the call returns unchanged if the call is a no-op."""
        return next(iter(self.arguments.values()), None)

    @cached_property
    def item(self) -> ResultItem | None:
        """The call as a `ResultItem`, if the call indexes the result of another call; None otherwise."""
        of = self.arguments.get("self")
        call = node_of(of) if isinstance(of, PlaceholderValue) else None
        index = list(self.arguments.values())[-1]
        return (
            ResultItem(call, index)
            if self.family == "getitem" and isinstance(call, PlaceholderCall) and type(index) is int
            else None
        )


@dataclass(frozen=True, eq=False)
class ResultItem:
    """One of several results of a call."""

    call: PlaceholderCall
    index: int


Node = Parameter | PlaceholderCall | ResultItem


@dataclass
class Decisions:
    """The outcomes of branches on facts, in order. A branch beyond the end of `outcomes` has the outcome True."""

    outcomes: list[bool] = field(default_factory=list)
    position: int = 0

    def next(self) -> bool:
        """Return the outcome of the current branch."""
        self.position += 1
        if self.position > len(self.outcomes):
            self.outcomes.append(True)
        return self.outcomes[self.position - 1]

    def next_combination(self) -> Decisions | None:
        """Return the next combination of branch outcomes; None after the last."""
        outcomes = self.outcomes[: self.position]
        while outcomes and not outcomes[-1]:
            outcomes.pop()
        return Decisions([*outcomes[:-1], False]) if outcomes else None


decisions: list[Decisions] = []


class Fact:
    """A placeholder for a value that depends on the metadata of tensors."""

    def __getattr__(self, name: str) -> Fact:
        if name.startswith("__"):
            raise AttributeError(name)
        return Fact()

    def __call__(self, *_: Any, **__: Any) -> Fact:
        """Return another fact, as the result of a method (`x.shape.numel()`)."""
        return Fact()

    def __iter__(self) -> Iterator[Fact]:
        return iter([Fact() for _ in range(_unpacked_count(sys._getframe(1)))])

    def __bool__(self) -> bool:
        return decisions[-1].next()

    def __hash__(self) -> int:
        return id(self)


class PlaceholderValue:
    """A placeholder for a tensor, or for a parameter of unknown kind."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> PlaceholderValue:
        """Return a placeholder that records the call."""
        return call_placeholder(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        attribute: Any = getattr(torch.Tensor, name, MISSING)
        if attribute is MISSING or name.startswith("__"):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        if name in VALUE_METHODS:
            raise PatternRefused(f"it reads the values of a tensor (`{name}`)")
        if name in FACT_METHODS:
            return lambda *args, **kwargs: Fact()
        if callable(attribute):
            return lambda *args, **kwargs: call_placeholder(attribute, (self, *args), kwargs)
        return call_placeholder(attribute.__get__, (self,), {}) if name in TENSOR_ATTRIBUTES else Fact()

    def __iter__(self) -> Iterator[PlaceholderValue]:
        node = self._node
        if not isinstance(node, PlaceholderCall):
            raise PatternRefused("it iterates over a tensor")
        return iter([PlaceholderValue(ResultItem(node, index)) for index in range(_unpacked_count(sys._getframe(1)))])

    def __bool__(self) -> NoReturn:
        raise PatternRefused("it branches on the value of a tensor")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise PatternRefused("it writes to a tensor")

    def __hash__(self) -> int:
        return id(self)


class WholeNumber(int):
    """A parameter that is annotated as an int, in a form that C functions accept."""

    node: Parameter


class RealNumber(float):
    """A parameter that is annotated as a float, in a form that C functions accept."""

    node: Parameter


NUMBER_CLASSES: dict[type | None, type[WholeNumber] | type[RealNumber]] = {int: WholeNumber, float: RealNumber}


def _binary(name: str) -> Callable[[PlaceholderValue, Any], Any]:
    return lambda self, operand: call_placeholder(getattr(torch.Tensor, name), (self, operand), {})


def _in_place(self: PlaceholderValue, other: object) -> NoReturn:
    raise PatternRefused("it writes to a tensor")


def _fact(self: Fact, *operands: Any) -> Any:
    return NotImplemented if any(isinstance(operand, PlaceholderValue) for operand in operands) else Fact()


for _name in BINARY:
    setattr(PlaceholderValue, f"__{_name}__", _binary(f"__{_name}__"))
    if hasattr(torch.Tensor, f"__r{_name}__"):
        setattr(PlaceholderValue, f"__r{_name}__", _binary(f"__r{_name}__"))
    setattr(PlaceholderValue, f"__i{_name}__", _in_place)
    setattr(Fact, f"__{_name}__", _fact)
    setattr(Fact, f"__r{_name}__", _fact)
for _name in (*COMPARISONS, *INDEXING):
    setattr(PlaceholderValue, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(Fact, f"__{_name}__", _fact)
for _name in UNARY:
    setattr(
        PlaceholderValue,
        f"__{_name}__",
        lambda self, _name=_name: call_placeholder(getattr(torch.Tensor, f"__{_name}__"), (self,), {}),
    )
    setattr(Fact, f"__{_name}__", _fact)


def call_placeholder(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> PlaceholderValue:
    """Return the result of a torch function as a placeholder that records the call.

    Raises `PatternRefused` for a function with an effect, or with a tensor that is not a parameter.
    """
    name = symbol_of(function).name
    short = name.rpartition(".")[2]
    writes = (short.endswith("_") and not short.endswith("__")) or short in ("__set__", "__setitem__")
    if writes or kwargs.get("out") is not None or kwargs.get("inplace") is True:
        raise PatternRefused(f"it writes to a tensor (`{name}`)")
    if is_ordered(symbol_of(function)):
        raise PatternRefused(f"it changes the state of the process (`{name}`)")
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves((args, dict(kwargs)))):
        raise PatternRefused("it uses a tensor that is not one of its parameters")
    arguments = named_arguments(function, args, kwargs)
    if _is_random(short, arguments):
        raise PatternRefused(f"it draws random numbers (`{name}`)")
    return PlaceholderValue(PlaceholderCall(function, family(name), arguments))


def _is_random(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the call draws random numbers, by the tags of its aten operator; inactive dropout does not."""
    operators = overloads(name)
    if not any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators):
        return False
    has_dropout_p = any(
        argument.name == "dropout_p" for operator in operators for argument in operator._schema.arguments
    )
    probability = arguments.get("dropout_p", 0.0) if has_dropout_p else arguments.get("p", 1.0)
    return arguments.get("training") is not False and probability != 0.0


def placeholder(parameter: Parameter) -> PlaceholderValue | WholeNumber | RealNumber:
    """Return the placeholder that a pattern's function receives for a parameter."""
    if parameter.kind not in NUMBER_CLASSES:
        return PlaceholderValue(parameter)
    number = NUMBER_CLASSES[parameter.kind](1)
    number.node = parameter
    return number


def is_placeholder(value: object) -> TypeGuard[PlaceholderValue | WholeNumber | RealNumber]:
    """Whether a value is a placeholder for a value that the search has to bind."""
    return isinstance(value, PlaceholderValue | WholeNumber | RealNumber)


def node_of(value: PlaceholderValue | WholeNumber | RealNumber) -> Node:
    """Return the node of a placeholder."""
    return value._node if isinstance(value, PlaceholderValue) else value.node


def _unpacked_count(frame: FrameType) -> int:
    """Return the number of names that the assignment at a frame's current instruction unpacks into."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
            return operator.index(instruction.argval)
        if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_EX":
            return int(instruction.argval & 0xFF) + 1 + int(instruction.argval >> 8)
    raise PatternRefused("it iterates over something whose length depends on its tensors")
