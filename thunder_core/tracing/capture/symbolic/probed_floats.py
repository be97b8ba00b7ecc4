"""Floats from outside in operations whose C++ code accepts only plain floats: two stand-in values identify each float.

An operation, or its derivative, runs twice on fakes, with two unusual values in place of each float. If the two runs
have a value and its twin at the same position, or a function of both (`1 - x`, `1 / x`), the value is the float, or the
function of the float. If the runs have any other difference, the float cannot be symbolic.

PyTorch's formulas have special cases: a power of zero, a norm of one, of less than one, or of more than two. So the
stand-in values of a float are between the same two `LANDMARKS` as the float, and guards require the same of the float
in each later call. Floats between the same two landmarks must keep their order, and equal floats must stay equal,
because C++ code may compare them.

Why a float is not an input of the program as a tensor of no dimensions and dtype float64: of 24 kinds of calls with a
float, 16 read the value of such a tensor in C++ (`leaky_relu(x, slope)`, `add(x, y, alpha=a)`, `layer_norm(eps=e)`,
`full(size, value)`), which fakes do not have, and a product with integers gets another dtype than with a float. These
calls would need a formula in Python each, for values and derivatives, which is more code than the two runs.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import OpaqueUnaryFn_log, OpaqueUnaryFn_sqrt

from thunder_core.tracing.ir.proxy import NumberProxy, Proxy

LARGEST = 1e300  # the largest float with a stand-in, because infinity has special cases
LANDMARKS = (-LARGEST, 0.0, 1.0, 2.0, LARGEST)
SPAN = 4.0  # the range of the stand-ins for floats beyond the last landmark
# the golden ratio: no simple function maps the fractional part of a multiple to that of another
STEP = 0.6180339887498949
TWINS = (1, 2)
MARGIN = 1.0
PROBE = 0.7316888  # the argument at which different functions are distinguished
SINGLE_STEPS = 1 << 20  # stand-ins are multiples of its inverse, so that single precision represents them
Pair = tuple[Any, Any]


def square_root(x: object) -> Any:
    """Return the square root of a float; NaN below zero."""
    return transcendental(OpaqueUnaryFn_sqrt, math.sqrt, x)


def logarithm(x: object) -> Any:
    """Return the natural logarithm of a float; NaN below zero."""
    return transcendental(OpaqueUnaryFn_log, math.log, x)


def transcendental(symbolic: Any, function: Callable[[float], float], x: Any) -> Any:
    """Return a function of a positive float, as an expression for a symbolic float; NaN for other floats."""
    if isinstance(x, torch.SymFloat):
        return float_of(symbolic(x.node.expr), x.node.shape_env)
    return function(x) if x > 0 else math.nan


# The functions that PyTorch's C++ code applies to a float before it passes the float to an operation.
FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    operator.neg,
    lambda x: 1 - x,
    lambda x: x - 1,
    lambda x: 1 / x,
    lambda x: x + 1,
    lambda x: 2 * x,
    lambda x: x / 2,
    lambda x: 0.5 * x,
    lambda x: x - 2,
    lambda x: 2 - x,
    lambda x: x * x,
    lambda x: -1 / x,
    lambda x: 1 / (1 - x),
    lambda x: -2 * x,
    lambda x: 1 / x - 1,
    square_root,
    logarithm,
)


class AmbiguousFloats(ValueError):
    """The error for two functions of floats with the same stand-in values, which cannot be distinguished."""


class FloatValueRead(BaseException):
    """The error for C++ code that reads the value of a float that must stay a symbol."""


def may_be_symbol(value: float) -> bool:
    """Whether a float can have a symbol: SymPy does not order NaN, splits infinity, and has no signed zero."""
    return math.isfinite(value) and (value != 0 or math.copysign(1, value) > 0)


def landmarks_around(value: float) -> tuple[float, float] | None:
    """Return the landmarks around a float; None for a landmark or NaN."""
    return next((ends for ends in itertools.pairwise(LANDMARKS) if ends[0] < value < ends[1]), None)


def stand_ins(numbers: Sequence[Any]) -> list[Pair] | None:
    """Return two stand-in values for each symbolic float, in the same order; None if a float is a landmark.

    The values are between the same landmarks as the float. Equal floats have the same pair: `restrict` ensures that
    they are equal in every call.
    """
    values = [float(number.node.hint) for number in numbers]
    around = [landmarks_around(value) for value in values]
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    pairs: list[Pair] = []
    for value, ends in zip(values, around, strict=True):
        if ends is None:
            return None
        low, high = _stand_in_range(*ends)
        positions = [ranks[value] + (len(TWINS) * ranks[value] + twin) * STEP % 1 for twin in TWINS]
        steps = (
            round((high - low) * index / (len(ranks) + MARGIN) * SINGLE_STEPS) / SINGLE_STEPS for index in positions
        )
        first, second = (low + step for step in steps)
        pairs.append((first, second))
    return pairs


def _stand_in_range(low: float, high: float) -> tuple[float, float]:
    """Return the range of stand-ins for floats between two landmarks."""
    return (high - SPAN if low == -LARGEST else low), (low + SPAN if high == LARGEST else high)


def restrict_to_stand_ins(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return stand-in values for symbolic floats, and restrict the floats to them; landmarks are unchanged."""
    between = {name: number for name, number in numbers.items() if landmarks_around(float(number.node.hint))}
    pairs = stand_ins(list(between.values())) or []
    restrict(list(between.values()))
    return {**numbers, **{name: first for name, (first, _) in zip(between, pairs, strict=True)}}


def restrict(numbers: Sequence[Any]) -> None:
    """Constrain symbolic floats to their present landmarks and their present order."""
    ordered = sorted(numbers, key=lambda number: float(number.node.hint))
    for number in ordered:
        value = float(number.node.hint)
        low, high = landmarks_around(value) or (value, value)
        bool(number > low)
        bool(number < high)
    for smaller, larger in itertools.pairwise(ordered):
        value, following = float(smaller.node.hint), float(larger.node.hint)
        if smaller.node.expr != larger.node.expr and landmarks_around(value) == landmarks_around(following):
            bool(smaller < larger)
            bool(smaller <= larger)


class FloatProxies(Mapping[Pair, Proxy]):
    """The proxies of floats, and of the functions that C++ code applies to them, by pairs of stand-in values.

    `numbers` are symbolic floats with their pairs; `proxy_of` returns the proxy of an expression.
    """

    def __init__(self, numbers: Sequence[tuple[Any, Pair]], proxy_of: Callable[[Any], Any]) -> None:
        self._numbers = numbers
        self._proxy_of = proxy_of
        self._functions_by_pair: dict[Pair, tuple[Any, Callable[[Any], Any]]] = {}
        for number, pair in reversed(numbers):
            for function in reversed(FUNCTIONS):
                self._record_meaning((function(pair[0]), function(pair[1])), number, function)

    def _record_meaning(self, pair: Pair, number: Any, function: Callable[[Any], Any]) -> None:
        """Record the meaning of a pair of values; raise `AmbiguousFloats` if the pair has another meaning already."""
        if any(map(math.isnan, pair)):
            return
        first_number, first_function = self._functions_by_pair.get(pair, (number, function))
        if first_number.node.hint != number.node.hint or not math.isclose(first_function(PROBE), function(PROBE)):
            raise AmbiguousFloats(f"{pair} represents two functions of floats")
        self._functions_by_pair[pair] = (number, function)

    def __getitem__(self, pair: Pair) -> Proxy:
        number, function = self._functions_by_pair[pair]
        proxy: Proxy = self._proxy_of(function(number))
        return proxy

    def common(self, left: NumberProxy, right: NumberProxy) -> Proxy | None:
        """Return the proxy of the number that two expressions represent, if they differ only in stand-ins; None
        otherwise.
        """
        expression, twin = left.value.node.expr, right.value.node.expr
        for pair, (number, function) in self._functions_by_pair.items():
            values = [sympy.Float(value) for value in pair]
            if values[0] in expression.atoms(sympy.Float) and values[1] in twin.atoms(sympy.Float):
                symbolic = function(number).node.expr
                expression, twin = expression.xreplace({values[0]: symbolic}), twin.xreplace({values[1]: symbolic})
        return self._proxy_of(float_of(expression, self._numbers[0][0].node.shape_env)) if expression == twin else None

    def __contains__(self, pair: object) -> bool:
        return pair in self._functions_by_pair

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._functions_by_pair)

    def __len__(self) -> int:
        return len(self._functions_by_pair)


def float_of(expression: sympy.Basic, environment: Any) -> Any:
    """Return an expression as a symbolic float in an environment, with the value given by its hints."""
    hint = float(expression.xreplace(environment.backed_var_to_val))
    return environment.create_symfloatnode(expression, hint=hint, source=None)
