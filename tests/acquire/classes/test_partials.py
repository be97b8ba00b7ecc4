"""Partials whose class derives from `functools.partial`: a call uses the fields of C, which a subclass may hide."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


class Derived(functools.partial):  # type: ignore[type-arg]
    pass


class Bound(functools.partial):  # type: ignore[type-arg]
    """Hides `func`, as pyro's handlers do; `partial` itself joins the arguments of a nested partial."""

    __slots__ = ("func",)

    def __init__(self, func: Any) -> None:
        self.func = func


class Hiding(functools.partial):  # type: ignore[type-arg]
    @property
    def args(self) -> Any:
        raise AssertionError("a call does not read this")


def scale(factor: float, function: Callable[..., Tensor], x: Tensor) -> Tensor:
    return function(factor, x) * factor


def add(number: Any, x: Tensor) -> Tensor:
    return x + number


def bound(number: float) -> Bound:
    return Bound(functools.partial(scale, number, add))


HELD: dict[str, Any] = {}
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "from outside": lambda x: HELD["bound"](x),
    "made inside": lambda x: bound(2.0)(x),
    "hidden arguments": lambda x: HELD["hiding"](x),
    "hidden function": lambda x: HELD["bound"].func(x),
    "mapped": lambda x: sum(map(HELD["bound"], (x, x + 1))),
    "derived": lambda x: HELD["derived"](x),
    "tensor": lambda x: HELD["tensor"](x),
}


def hold(number: float) -> None:
    HELD.update(bound=bound(number), hiding=Hiding(add, number), derived=Derived(add, number))
    HELD.update(tensor=Derived(add, torch.full((3,), number)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_match_eager_after_the_partial_is_replaced(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program)
    for number in (2.0, 5.0):
        hold(number)
        for x in (torch.ones(3), torch.arange(3.0)):
            assert torch.equal(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == (1 if name in ("made inside", "tensor") else 2)


def test_a_partial_is_an_argument() -> None:
    compiled = thunder.jit(lambda function, x: function(x))
    for number in (1.0, 2.0):
        for function in (bound(number), Hiding(add, number), Derived(add, number)):
            assert torch.equal(compiled(function, torch.ones(3)), function(torch.ones(3)))
