"""Floats from outside in operations whose C++ takes plain ones: found again by two values that stand for each.

An operation, or its derivative, runs twice on tensors without data, with two values that nobody writes in place of each
float. Wherever both runs have a value and its twin, or what one function makes of both (`1 - x`, `1 / x`), that is the
float, or the function of it. Where they differ in anything else, this is not possible.

PyTorch's formulas take other ways for some values: a power of zero, a norm of one, of less than one, or of more than
two. So the values that stand for a float lie between the same two of `LANDMARKS` as the float does, and so do all
floats that a program serves. Floats between the same two keep their order, and equal ones stay equal, since C++ may
compare them.
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

LARGEST = 1e300  # of the floats that something stands for: infinity takes ways of its own
LANDMARKS = (-LARGEST, 0.0, 1.0, 2.0, LARGEST)
SPAN = 4.0  # of what stands for floats beyond the last landmark
STEP = 0.6180339887498949  # whose multiples have fractions that no simple function takes to one another
TWINS = (1, 2)
MARGIN = 1.0
BETWEEN = 0.7316888  # at which functions that are not the same differ
SINGLE = 1 << 20  # stand-ins are multiples of its inverse, which single precision has, too
Pair = tuple[Any, Any]


def square_root(x: Any) -> Any:
    """The square root of a float, NaN for one below zero."""
    return transcendental(OpaqueUnaryFn_sqrt, math.sqrt, x)


def logarithm(x: Any) -> Any:
    """The natural logarithm of a float, NaN for one below zero."""
    return transcendental(OpaqueUnaryFn_log, math.log, x)


def transcendental(symbolic: Any, function: Callable[[float], float], x: Any) -> Any:
    """A function of a positive float, as an expression for a symbolic one, and NaN for another."""
    if isinstance(x, torch.SymFloat):
        return float_of(symbolic(x.node.expr), x.node.shape_env)
    return function(x) if x > 0 else math.nan


# What PyTorch's C++ makes of a float before it gives it to an operation.
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
    """Two functions of floats have the same values for what stands for these, so that neither can be told."""


class FloatAsked(BaseException):
    """Code in C++ asks for the value of a float that is to stay a symbol."""


def may_be_symbol(value: float) -> bool:
    """Whether a float can have a symbol: SymPy has no order for NaN, takes infinity apart, and knows no signed zero."""
    return math.isfinite(value) and (value != 0 or math.copysign(1, value) > 0)


def landmarks_around(value: float) -> tuple[float, float] | None:
    """The landmarks that a float lies between; None for one that is a landmark, or no number."""
    return next((ends for ends in itertools.pairwise(LANDMARKS) if ends[0] < value < ends[1]), None)


def stand_ins(numbers: Sequence[Any]) -> list[Pair] | None:
    """Two values for each symbolic float, between the same landmarks, in the same order; None where one is a landmark.

    Floats of equal values have the same pair: `restrict` sees to it that they are equal in every call.
    """
    values = [float(number.node.hint) for number in numbers]
    around = [landmarks_around(value) for value in values]
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    pairs: list[Pair] = []
    for value, ends in zip(values, around, strict=True):
        if ends is None:
            return None
        low, high = _finite(*ends)
        places = [ranks[value] + (len(TWINS) * ranks[value] + twin) * STEP % 1 for twin in TWINS]
        one, other = (low + round((high - low) * place / (len(ranks) + MARGIN) * SINGLE) / SINGLE for place in places)
        pairs.append((one, other))
    return pairs


def _finite(low: float, high: float) -> tuple[float, float]:
    """The ends between which values stand for floats that lie between two landmarks."""
    return (high - SPAN if low == -LARGEST else low), (low + SPAN if high == LARGEST else high)


def with_stand_ins_alone(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Values that stand for symbolic floats, which are restricted to such ones; landmarks stay what they are."""
    between = {name: number for name, number in numbers.items() if landmarks_around(float(number.node.hint))}
    pairs = stand_ins(list(between.values())) or []
    restrict(list(between.values()))
    return {**numbers, **{name: one for name, (one, _) in zip(between, pairs, strict=True)}}


def restrict(numbers: Sequence[Any]) -> None:
    """Constrain symbolic floats to the landmarks they lie between now, and to the order that they have there."""
    ordered = sorted(numbers, key=lambda number: float(number.node.hint))
    for number in ordered:
        value = float(number.node.hint)
        low, high = landmarks_around(value) or (value, value)
        bool(number > low)
        bool(number < high)
    for one, other in itertools.pairwise(ordered):
        value, following = float(one.node.hint), float(other.node.hint)
        if one.node.expr != other.node.expr and landmarks_around(value) == landmarks_around(following):
            bool(one < other)
            bool(one <= other)


class Named(Mapping[Pair, Proxy]):
    """The proxies of floats, and of what C++ makes of them, by the pairs of values that stand for these.

    `numbers` are symbolic floats, each with the pair that stands for it; `proxy_of` gives the proxy of an expression.
    """

    def __init__(self, numbers: Sequence[tuple[Any, Pair]], proxy_of: Callable[[Any], Any]) -> None:
        self._numbers = numbers
        self._proxy_of = proxy_of
        self._places: dict[Pair, tuple[Any, Callable[[Any], Any]]] = {}
        for number, pair in reversed(numbers):
            for function in reversed(FUNCTIONS):
                self._claim((function(pair[0]), function(pair[1])), number, function)

    def _claim(self, place: Pair, number: Any, function: Callable[[Any], Any]) -> None:
        """Note what a pair of values stands for; raises `AmbiguousFloats` where that is something else already."""
        if any(map(math.isnan, place)):
            return
        known, before = self._places.get(place, (number, function))
        if known.node.hint != number.node.hint or not math.isclose(before(BETWEEN), function(BETWEEN)):
            raise AmbiguousFloats(f"{place} stands for two functions of floats")
        self._places[place] = (number, function)

    def __getitem__(self, pair: Pair) -> Proxy:
        number, function = self._places[pair]
        proxy: Proxy = self._proxy_of(function(number))
        return proxy

    def common(self, one: NumberProxy, other: NumberProxy) -> Proxy | None:
        """The number that two are the values of, which differ in what stands for floats; None where there is none."""
        expression, twin = one.value.node.expr, other.value.node.expr
        for pair, (number, function) in self._places.items():
            values = [sympy.Float(value) for value in pair]
            if values[0] in expression.atoms(sympy.Float) and values[1] in twin.atoms(sympy.Float):
                symbolic = function(number).node.expr
                expression, twin = expression.xreplace({values[0]: symbolic}), twin.xreplace({values[1]: symbolic})
        return self._proxy_of(float_of(expression, self._numbers[0][0].node.shape_env)) if expression == twin else None

    def __contains__(self, pair: object) -> bool:
        return pair in self._places

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def float_of(expression: sympy.Basic, environment: Any) -> Any:
    """The symbolic float that an expression is in an environment, with the value that it has by its hints."""
    hint = float(expression.xreplace(environment.backed_var_to_val))
    return environment.create_symfloatnode(expression, hint=hint, source=None)
