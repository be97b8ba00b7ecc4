"""Attributes of objects whose names the metaclass defines, too."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import pytest
import torch

import thunder_core as thunder


class Named:
    """An object with its own `__name__`, `__dict__` and `__bases__`."""

    size = 3

    @property
    def __name__(self) -> str:
        return "x" * self.size

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return {"k": self.size}

    @property
    def __bases__(self) -> Any:
        return (1,) * self.size


class Posing:
    """An object that reports another class."""

    @property
    def __class__(self) -> Any:
        return int


class Meta(type):
    """A metaclass with an attribute that its classes have."""

    @property
    def factor(cls) -> int:
        return 7


class Made(metaclass=Meta):
    """A class whose objects have an attribute of the same name."""

    value = 2

    @property
    def factor(self) -> int:
        return self.value


class Derived(Made):
    """A class that inherits the attribute."""


PROGRAMS: dict[str, tuple[Any, Any]] = {
    "a name": (lambda x, one: x * len(one.__name__), Named()),
    "a namespace": (lambda x, one: x * one.__dict__["k"], Named()),
    "bases": (lambda x, one: x * len(one.__bases__), Named()),
    "a class": (lambda x, one: x * 2 if one.__class__ is int else x, Posing()),
    "an instance of a class": (lambda x, one: x * 2 if isinstance(one, int) else x, Posing()),
    "a property": (lambda x, one: x * one.factor, Made()),
    "a property of a base": (lambda x, one: x * one.factor, Derived()),
    "the class's own": (lambda x, one: x * one.factor, Made),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_attributes_come_from_the_object(name: str) -> None:
    program, one = PROGRAMS[name]
    compiled, x = thunder.jit(program), torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, one), program(x, one))
    assert thunder.cache_misses(compiled) == 1


def test_a_changed_property_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, one, x = thunder.jit(PROGRAMS["a property"][0]), Derived(), torch.ones(2)
    assert compiled(x, one)[0] == 2
    monkeypatch.setattr(Made, "value", 5)
    assert compiled(x, one)[0] == 5


def test_a_changed_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, one, x = thunder.jit(PROGRAMS["a name"][0]), Named(), torch.ones(2)
    assert compiled(x, one)[0] == 3
    monkeypatch.setattr(Named, "size", 4)
    assert compiled(x, one)[0] == 4


class Singleton(type):
    """Makes one instance of each class, and counts calls."""

    calls = 0
    instances: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        Singleton.calls += 1
        if cls not in Singleton.instances:
            Singleton.instances[cls] = super().__call__(*args, **kwargs)
        return Singleton.instances[cls]


class Empty(metaclass=Singleton):
    pass


class Table(dict[str, int], metaclass=Singleton):
    pass


def test_metaclass_that_calls_its_base_makes_an_object_of_a_class_without_init() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * Table(size=3)["size"] + len(Singleton.instances), Empty() is Empty()

    results = []
    for function in (thunder.jit(program), program):
        Singleton.calls = 0
        Singleton.instances.clear()
        results.append([(function(torch.ones(2))[0].tolist(), Singleton.calls) for _ in range(3)])
    assert results[0] == results[1]


class Comparing(type):
    """A metaclass that regards numbers above a limit as instances."""

    limit = 3

    def __instancecheck__(cls, value: Any) -> bool:
        return bool(value > Comparing.limit)


class Large(metaclass=Comparing):
    """A class whose instances are large numbers."""


class Registered(metaclass=abc.ABCMeta):  # noqa: B024
    """An abstract class with which `int` is registered later."""


def test_an_instance_check_of_the_user_runs_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = thunder.jit(lambda x, n: x * 2 if isinstance(n, Large) else x * 3), torch.ones(2)
    for number in (1, 2, 5, 6):
        assert torch.equal(compiled(x, number), x * (2 if number > 3 else 3))
    monkeypatch.setattr(Comparing, "limit", 10)
    assert torch.equal(compiled(x, 6), x * 3)


def test_the_class_of_a_symbolic_number_may_be_registered_later() -> None:
    compiled, x = thunder.jit(lambda x, n: x * 2 if isinstance(n, Registered) else x * 3), torch.ones(2)
    for number in (1, 2, 3):
        assert torch.equal(compiled(x, number), x * 3)
    Registered.register(int)
    assert torch.equal(compiled(x, 4), x * 2)
