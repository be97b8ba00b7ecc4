"""Bound methods as results: methods of numbers, tensors and other objects, defined in Python and in C."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import thunder_core as thunder


class Box:
    """An object with methods, one of which is hidden by an attribute."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.hidden = 5

    def times(self, n: Any) -> Any:
        return self.x * n

    def hidden(self, n: Any) -> Any:
        return self.x + n

    @staticmethod
    def added(box: Any, n: Any) -> Any:
        return box.x + n

    @classmethod
    def made(cls, x: Any) -> Any:
        return cls(x).times(2)


class Meta(type):
    """A class of classes with a method."""

    def method(cls, n: Any) -> Any:
        return n + 1


class Hiding(metaclass=Meta):
    """A class that hides the method of its class by an attribute."""

    method = 5  # type: ignore[assignment]


class Doubled(list[Any]):
    """A list that hides a method of C code."""

    def append(self, item: Any) -> None:
        super().append(item * 2)

    def plain_append(self) -> Any:
        return super().append


class Table(dict[str, Any]):
    """A dict whose instances may have attributes."""


def hidden_get(items: dict[str, Any]) -> Any:
    table = Table(items)
    get = table.get
    table.get = lambda key: 5  # type: ignore[method-assign]
    return get


def scaled(tensor: Any, n: Any) -> Any:
    return tensor * n


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "of an integer": (lambda x: getattr(5, "__add__"), (3,)),  # noqa: B009
    "of a negative integer": (lambda x: (-5).__abs__, ()),
    "of a size": (lambda x: x.shape[0].__add__, (3,)),
    "of a float": (lambda x: (2.5).is_integer, ()),
    "of a string": (lambda x: "ab".find, ("b",)),
    "of a slice": (lambda x: slice(1, x.shape[0]).indices, (5,)),
    "of a tensor": (lambda x: (x * 2).sum, ()),
    "of a number out of a tensor": (lambda x: x.sum().item().__mul__, (3,)),
    "a function bound to a tensor": (lambda x: types.MethodType(lambda tensor, n: tensor * n, x * 2), (3,)),
    "a named function bound to a tensor": (lambda x: types.MethodType(scaled, x), (4,)),
    "a function of PyTorch's bound to a tensor": (lambda x: types.MethodType(torch.add, x), (1,)),
    "a builtin bound to a tensor": (lambda x: types.MethodType(len, x), ()),
    "a function bound to a number": (lambda x: types.MethodType(scaled, 5), (2,)),
    "of an object": (lambda x: Box(x).times, (2,)),
    "of an object, which an attribute hides": (lambda x: types.MethodType(Box.hidden, Box(x)), (2,)),
    "of a class": (lambda x: Box.made, (torch.ones(2),)),
    "of C, which a method hides": (lambda x: Doubled([x]).plain_append(), (3,)),
    "of a dict in C, which an attribute hides": (lambda x: hidden_get({"x": x}), ("x",)),
    "of a metaclass, which the class hides": (lambda x: types.MethodType(Meta.method, Hiding), (2,)),
    "a static method that is bound to an object": (lambda x: types.MethodType(Box.added, Box(x)), (2,)),
    "a class method that is bound to an object": (lambda x: types.MethodType(Box.made.__func__, Box), (torch.ones(2),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bound_method_that_is_returned_matches_eager(name: str) -> None:
    program, args = PROGRAMS[name]
    compiled = thunder.jit(program)
    for x in (torch.ones(2), torch.full((3,), 2.0)):
        ours, eager = compiled(x), program(x)
        assert type(ours) is type(eager)
        torch.testing.assert_close(ours(*args), eager(*args))


def test_method_of_c_that_a_method_hides_appends_to_the_same_object() -> None:
    items = Doubled()
    compiled = thunder.jit(lambda x: (items.plain_append(), x + 1))
    for number in range(3):
        append, _ = compiled(torch.ones(2))
        append(number)
    assert items == [0, 1, 2]
