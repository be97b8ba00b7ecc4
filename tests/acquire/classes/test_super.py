"""What `super()` finds is guarded: methods and attributes of base classes that are replaced later are noticed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)
Case = tuple[Callable[[torch.Tensor], Any], list[Callable[[], Any]]]


def methods() -> Case:
    class Base:
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Left(Base):
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return super().go(x) * 2

    class Right(Base):
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return super().go(x) * 3

    class Both(Left, Right):
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return super().go(x) * 5

    both = Both()
    changes = [
        lambda: setattr(Right, "go", Base.go),
        lambda: setattr(Base, "go", lambda self, x: x),
        lambda: delattr(Right, "go"),
        lambda: setattr(Left, "go", lambda self, x: super(Left, self).go(x) * 7),
        lambda: delattr(Left, "go"),
    ]
    return lambda x: both.go(x), changes


def attributes() -> Case:
    class Base:
        number = 2

        @property
        def getter(self) -> int:
            return 3

        @classmethod
        def of_class(cls) -> int:
            return 5

        @staticmethod
        def static() -> int:
            return 7

    class Derived(Base):
        number = 11

        @property
        def getter(self) -> int:
            return super().getter

        @classmethod
        def of_class(cls) -> int:
            return super().of_class()

        def added(self) -> int:
            return getattr(super(), "extra", 1)

        def all(self) -> int:
            return super().number * self.getter * self.of_class() * super().static() * self.added()

    derived = Derived()
    changes = [
        lambda: setattr(Base, "number", 4),
        lambda: setattr(Base, "getter", property(lambda self: 13)),
        lambda: setattr(Base, "of_class", classmethod(lambda cls: 17)),
        lambda: setattr(Base, "static", staticmethod(lambda: 19)),
        lambda: setattr(Base, "extra", 23),
    ]
    return lambda x: x * derived.all(), changes


def getters() -> Case:
    class OwnProperty(property):
        """A property that inherits the methods of `property`."""

    class Base:
        scale = 2

        @OwnProperty
        def own(self) -> int:
            return self.scale * 3

        partial: Any = property(functools.partial(lambda self: self.scale * 5))

    class Derived(Base):
        @property
        def own(self) -> int:
            return super().own + 1

        @property
        def partial(self) -> int:
            return super().partial + 1

    derived = Derived()
    changes = [lambda: setattr(Base, "scale", 7), lambda: setattr(derived, "scale", 11)]
    return lambda x: x * derived.own * derived.partial, changes


def modules() -> Case:
    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    class Derived(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    def changed_init(self: Any) -> None:
        torch.nn.Module.__init__(self)
        self.scale = 7

    module = Derived()
    changes = [
        lambda: setattr(Base, "forward", lambda self, x: x * self.scale * 3),
        lambda: setattr(Base, "__init__", changed_init),
    ]
    return lambda x: module(x) * Derived()(x), changes


@pytest.mark.parametrize("case", [methods, attributes, getters, modules])
def test_replaced_member_of_a_base_class_is_noticed(case: Callable[[], Case]) -> None:
    program, changes = case()
    compiled = thunder.jit(program)
    assert torch.equal(compiled(X), program(X))
    for change in changes:
        change()
        assert torch.equal(compiled(X), program(X))
    misses = thunder.cache_misses(compiled)
    assert torch.equal(compiled(X), program(X))
    assert thunder.cache_misses(compiled) == misses <= len(changes) + 1
