"""Numbers that a trace does not know: floats from outside that change, and the values of tensors."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from thunder_core.capture.call import Call
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.tree import leaves, replace_leaves

BINARY = ("add", "sub", "mul", "truediv", "pow")
UNARY = ("neg", "pos", "abs")
# What needs the value itself, which ends with a guard on it, or with an error.
COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
READING = (
    "__hash__", "__bool__", "__int__", "__float__", "__round__", "__trunc__", "__floor__", "__ceil__", "__str__",
    "__repr__", "__format__", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__divmod__", "__rdivmod__",
    "is_integer", "as_integer_ratio", "hex", "conjugate",
)  # fmt: skip


class Number(torch.SymFloat):
    """A float that is known when the trace runs; arithmetic with it is lines of the trace.

    It is of PyTorch's class for such numbers, so that operations take it as the number that it is. `settle()` gives
    the value where the program asks for it, or raises.
    """

    def __init__(self, proxy: Proxy, numbers: Numbers, settle: Callable[[], float]) -> None:
        super().__init__(self)  # type: ignore[no-untyped-call]  # PyTorch's C++ asks the node for the value: `guard_float`
        self.proxy = proxy
        self.numbers = numbers
        self.settle = settle

    def guard_float(self, file: str, line: int) -> float:  # noqa: ARG002
        """The value, for code in C++."""
        return self.settle()


def _binary(name: str, reverse: bool) -> Callable[[Number, Any], Any]:
    function = getattr(operator, name)

    def method(self: Number, other: Any) -> Any:
        if type(other) not in (int, float, bool, Number):
            return NotImplemented
        return self.numbers.computed(function, (other, self) if reverse else (self, other))

    return method


def _unary(name: str) -> Callable[[Number], Any]:
    return lambda self: self.numbers.computed(getattr(operator, name), (self,))


def _reading(name: str) -> Callable[..., Any]:
    def method(self: Number, *args: Any) -> Any:
        return getattr(self.settle(), name)(*(arg.settle() if isinstance(arg, Number) else arg for arg in args))

    return method


for _name in BINARY:
    setattr(Number, f"__{_name}__", _binary(_name, reverse=False))
    setattr(Number, f"__r{_name}__", _binary(_name, reverse=True))
for _name in UNARY:
    setattr(Number, f"__{_name}__", _unary(_name))
for _name in (*READING, *COMPARING):
    setattr(Number, _name, _reading(_name))


class Numbers:
    """The numbers of one recording; `emit` takes the lines that compute them."""

    def __init__(self, next_name: Callable[[], str], emit: Callable[[BoundSymbol], None]) -> None:
        self.are_there = False
        self._computed: dict[Hashable, Number] = {}
        self._next_name = next_name
        self._emit = emit

    def new(self, settle: Callable[[], float], name: str | None = None) -> Number:
        """A number, by the name of an input or that of a result."""
        self.are_there = True
        return Number(Proxy(name or self._next_name()), self, settle)

    def computed(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Number:
        """What a function of `operator` makes of numbers, in the trace."""
        args = to_proxies(operands)
        key = (function, *((type(arg), repr(arg)) for arg in args))
        if key not in self._computed:
            result = self._computed[key] = self.new(lambda: float(function(*settled(operands))))
            self._emit(BoundSymbol(Symbol(f"operator.{function.__name__}", function), args, {}, result.proxy))
        return self._computed[key]


def is_unknown_float(fake: torch.Tensor) -> bool:
    """Whether a fake is one float, and nothing says which."""
    return fake.numel() == 1 and fake.is_floating_point() and getattr(fake, "constant", None) is None


def numbers_in(tree: Any) -> list[Number]:
    """Each number of a tree, once, in order."""
    return list({id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, Number)}.values())


def settled(tree: Any) -> Any:
    """A tree with the values of its numbers."""
    return replace_leaves(tree, lambda leaf: leaf.settle() if isinstance(leaf, Number) else leaf)


def to_proxies(tree: Any) -> Any:
    """A tree with the names of its numbers."""
    return replace_leaves(tree, lambda leaf: leaf.proxy if isinstance(leaf, Number) else leaf)


# Between a quarter and a half, so that they are probabilities, rates and exponents, and such as nobody writes.
_values = (0.25 + (step * 0.6180339887498949) % 0.25 for step in itertools.count(7))
_DIFFERS = Proxy("")


def run_on_numbers(run: Callable[[Any], tuple[Any, Call]], given: Any, numbers: Sequence[Number]) -> tuple[Any, Call]:
    """Run a call with values that stand in for its numbers; its aten operations get the numbers' names.

    It runs twice, with other values: what differs is a number, or hangs on one. Where a value became something else on
    the way, the call is known at its own level only. Raises `ValueError` where the result looks different.
    """
    one, other = ({id(number): next(_values) * factor for number in numbers} for factor in (1, 10))
    like, twin = run(_standing_in(given, other))
    output, call = run(_standing_in(given, one))
    if appearance(like) != appearance(output):
        raise ValueError("the values of numbers decide what the result looks like")
    names = {(one[id(number)], other[id(number)]): number.proxy for number in numbers}
    parts = None if call.opaque else _named(call.subsymbols, twin.subsymbols, names)
    call.opaque, call.subsymbols = parts is None, parts or []
    return output, call


def appearance(output: Any) -> list[Any]:
    """What a program can see of a result before it runs."""
    return [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves(output)
    ]


def _standing_in(tree: Any, values: dict[int, float]) -> Any:
    return replace_leaves(tree, lambda leaf: values[id(leaf)] if isinstance(leaf, Number) else leaf)


def _named(
    parts: Sequence[BoundSymbol], twins: Sequence[BoundSymbol], names: dict[tuple[float, float], Proxy]
) -> list[BoundSymbol] | None:
    """The operations of a call with the names of numbers in place of values; None where they cannot be told."""
    if [part.symbol for part in parts] != [twin.symbol for twin in twins]:
        return None
    named = []
    for part, twin in zip(parts, twins, strict=True):
        given = (part.args, dict(part.kwargs))
        ours, others = list(leaves(given)), list(leaves((twin.args, dict(twin.kwargs))))
        found = [_common(*pair, names) for pair in zip(ours, others, strict=False)]
        if len(ours) != len(others) or _DIFFERS in found:
            return None
        args, kwargs = _filled(given, iter(found))
        named.append(BoundSymbol(part.symbol, args, kwargs, part.output))
    return named


def _filled(tree: Any, values: Iterator[Any]) -> Any:
    return replace_leaves(tree, lambda leaf: next(values))


def _common(one: Any, other: Any, names: dict[tuple[float, float], Proxy]) -> Any:
    """What stands at one place in both runs."""
    if type(one) is float and type(other) is float and (one, other) in names:
        return names[one, other]
    return one if isinstance(one, Proxy) or repr(one) == repr(other) else _DIFFERS
