"""Arguments of a torch.autograd.Function keep the classes and the values that they have in eager."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import thunder_core as thunder

Point = namedtuple("Point", "h w")


class Row(tuple[Any, ...]):  # noqa: SLOT001
    """A tuple with attributes."""


class Triple(tuple[Any, ...]):  # noqa: SLOT001
    """A tuple whose constructor takes three arguments."""

    def __new__(cls, one: Any, two: Any, three: Any) -> Triple:
        return tuple.__new__(cls, (one, two, three))


class Column(list[Any]):
    """A user-defined subclass of list."""


@dataclass
class Settings:
    """An object with a value."""

    k: Any

    def times(self, x: Any) -> Any:
        return x * self.k


def labelled(*items: Any, **attributes: Any) -> Row:
    row = Row(items)
    vars(row).update(attributes)
    return row


# The number for each class of arguments; the first matching class counts.
FACTORS = (
    (torch.Size, lambda given: given.numel()),
    (Point, lambda given: given.h + 100 * given.w),
    (Row, lambda given: given.extra + given[0]),
    (Triple, lambda given: given[0] * given[1] * given[2]),
    (Column, lambda given: len(given) + 7),
    (dict, lambda given: given["k"]),
    (Settings | types.SimpleNamespace, lambda given: given.k),
    (tuple | list, lambda given: 0.5),
)


def factor(given: Any) -> Any:
    return next(value(given) for kind, value in FACTORS if isinstance(given, kind))


class Scaled(torch.autograd.Function):
    """A function of a tensor and an argument of any class."""

    @staticmethod
    def forward(ctx, x, given):
        ctx.given = given
        return x * factor(given)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * factor(ctx.given) * 3, None


class Applied(torch.autograd.Function):
    """A function of a tensor and a function."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.function(gradient), None


def times(x, n):
    return x * n


def closure_over_a_size(x):
    n = x.size(0)
    return Applied.apply(x, lambda v: v * n)


PROGRAMS = {
    "a size": lambda x: Scaled.apply(x, x.size()),
    "a part of a size": lambda x: Scaled.apply(x, x.size()[:1]),
    "a constant size": lambda x: Scaled.apply(x, torch.Size([2, 5])),
    "a tuple": lambda x: Scaled.apply(x, tuple(x.size())),
    "a named tuple": lambda x: Scaled.apply(x, Point(x.size(0), 3)),
    "a named tuple of tensors": lambda x: Scaled.apply(x, Point(*x.detach().max(0))),
    "a tuple with attributes": lambda x: Scaled.apply(x, labelled(x.size(0), 3, extra=x.size(1))),
    "a tuple with a constructor": lambda x: Scaled.apply(x, Triple(x.size(0), 3, 2)),
    "a list of a class": lambda x: Scaled.apply(x, Column([x.size(0), x.detach()])),
    "classes in turn": lambda x: Scaled.apply(x, x.size()) + Scaled.apply(x, (4, 3)) + Scaled.apply(x, Point(4, 3)),
    "a dict": lambda x: Scaled.apply(x, {"k": x.size(0)}),
    "an ordered dict": lambda x: Scaled.apply(x, OrderedDict(k=x.size(0))),
    "an object": lambda x: Scaled.apply(x, Settings(x.size(0))),
    "a namespace": lambda x: Scaled.apply(x, types.SimpleNamespace(k=x.size(0))),
    "a closure": closure_over_a_size,
    "a default": lambda x: Applied.apply(x, lambda v, k=x.size(0): v * k),  # noqa: B008
    "a partial function": lambda x: Applied.apply(x, functools.partial(times, n=x.size(0))),
    "a method": lambda x: Applied.apply(x, Settings(x.size(0)).times),
}


@pytest.mark.parametrize("cache", ["symbolic values", "default"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_match_eager(name: str, cache: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program) if cache == "default" else thunder.jit(program, cache=cache)
    for shape in ((4, 3), (5, 3), (2, 6), (4, 3)):
        x = torch.rand(shape)
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        results = [compiled(ours), program(eager)]
        torch.testing.assert_close(*results)
        for result in results:
            result.sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)
