"""Callable objects that are not Python functions are guarded: if a program calls another object, it is traced again."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any

import pytest
import torch

import thunder_core as thunder

CALLED: dict[str, tuple[Any, Any]] = {
    "an overload": (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
    "an operator": (torch.ops.aten.sin, torch.ops.aten.cos),
    "a function of C": (torch.sin, torch.cos),
    "a method of C": (torch.Tensor.sin, torch.Tensor.cos),
    "a getter of items": (operator.itemgetter(0), operator.itemgetter(1)),
    "a getter of attributes": (operator.attrgetter("T"), operator.attrgetter("real")),
    "a caller of methods": (operator.methodcaller("sin"), operator.methodcaller("cos")),
    "a cached function": (functools.lru_cache(lambda x: x.sin()), functools.lru_cache(lambda x: x.cos())),
}
HELD: dict[str, Any] = {}


@pytest.mark.parametrize("name", CALLED)
def test_called_object_is_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-1.0, 1.0, 12).view(3, 4)
    compiled = thunder.jit(lambda x: HELD["function"](x) * 1)
    for function in CALLED[name]:
        monkeypatch.setitem(HELD, "function", function)
        torch.testing.assert_close(compiled(x), function(x))
    assert thunder.cache_misses(compiled) == 2


class Called:
    """A callable object that lists the attributes that are read."""

    reads: list[str]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class WithGetattr(Called):
    def __getattr__(self, name: str) -> Any:
        object.__getattribute__(self, "reads").append(name)
        return "append"


class WithGetattribute(Called):
    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "reads").append(name)
        return {"__module__": "random", "__self__": [1]}.get(name, "get")


class WithProperties(Called):
    @property
    def __self__(self) -> Any:
        self.reads.append("__self__")
        return []

    @property
    def __name__(self) -> str:
        self.reads.append("__name__")
        return "append"


class WithHash(Called):
    def __hash__(self) -> int:
        self.reads.append("__hash__")
        return hash(torch.sin)

    def __eq__(self, other: object) -> bool:
        self.reads.append("__eq__")
        return True


class WithOperator(WithGetattr):
    __call__ = operator.attrgetter("T")  # type: ignore[assignment]


class PartialWithGetattr(functools.partial):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        self.__dict__["reads"].append(name)
        return "append"


class Entered(WithGetattribute):
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def enter(entered: Entered, x: torch.Tensor) -> torch.Tensor:
    with entered:
        return x + 1


class ListWithGetattribute(list):  # type: ignore[type-arg]
    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "reads").append(name)
        return object.__getattribute__(self, name)


def append(items: list[int], x: torch.Tensor) -> torch.Tensor:
    list.append(items, 1)
    return x * list.__len__(items)


OBJECTS: dict[str, tuple[Any, Any]] = {
    "__getattr__": (WithGetattr(), lambda called, x: called(x)),
    "__getattribute__": (WithGetattribute(), lambda called, x: called(x)),
    "properties": (WithProperties(), lambda called, x: called(x)),
    "__hash__": (WithHash(), lambda called, x: called(x)),
    "__call__ in C": (WithOperator(), lambda called, x: called(x)),
    "a partial": (PartialWithGetattr(torch.add, 1), lambda called, x: called(x)),
    "map": (WithGetattr(), lambda called, x: sum(map(called, [x, x]))),
    "a method": (WithGetattr(), lambda called, x: types.MethodType(called, x)()),
    "a context manager": (Entered(), enter),
    "a method of the base": (ListWithGetattribute(), append),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_attributes_of_called_objects_are_not_read(name: str) -> None:
    called, program = OBJECTS[name]
    reads: list[str] = []
    object.__setattr__(called, "reads", reads)
    compiled = thunder.jit(lambda x: program(called, x))
    for _ in range(2):
        compiled(torch.ones(2))
    assert reads == []
