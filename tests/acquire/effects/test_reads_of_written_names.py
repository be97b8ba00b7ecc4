"""Reads of attributes that the program writes in a class or deletes: later changes of other classes are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder_core as thunder

X = torch.ones(2)


def outcomes(
    function: Callable[..., Any], program: Callable[..., Any], changes: list[Callable[..., None]]
) -> list[Any]:
    """Call a program with new classes, once at first and once after each change; return the results."""

    class Base:
        factor = 1

    class Derived(Base):
        pass

    owner = Derived()
    owner.own = 2
    compiled = function(lambda x: program(x, Base, Derived, owner))
    results = [compiled(X).tolist()]
    for change in changes:
        change(Base, Derived, owner)
        results.append(compiled(X).tolist())
    return [*results, Base.factor, dict(vars(owner))]


def assert_same(program: Callable[..., Any], *changes: Callable[..., None]) -> None:
    assert outcomes(thunder.jit, program, list(changes)) == outcomes(lambda function: function, program, list(changes))


def test_class_attribute_that_is_hidden_later() -> None:
    def program(x: torch.Tensor, base: Any, derived: Any, owner: Any) -> torch.Tensor:
        base.factor = base.factor + 1
        return x * owner.factor + derived.factor

    assert_same(
        program,
        lambda base, derived, owner: setattr(derived, "factor", 50),
        lambda base, derived, owner: setattr(owner, "factor", 70),
    )


def test_method_that_is_hidden_later() -> None:
    def program(x: torch.Tensor, base: Any, derived: Any, owner: Any) -> torch.Tensor:
        base.method = lambda self: 7
        return x * owner.method()

    assert_same(program, lambda base, derived, owner: setattr(derived, "method", lambda self: 9))


def test_class_attribute_behind_deleted_attribute() -> None:
    def program(x: torch.Tensor, base: Any, derived: Any, owner: Any) -> torch.Tensor:
        owner.factor = 3
        del owner.factor
        result = x * owner.factor
        del owner.own
        owner.own = 2
        return result

    assert_same(
        program,
        lambda base, derived, owner: setattr(base, "factor", 50),
        lambda base, derived, owner: setattr(derived, "factor", 70),
    )


def test_property_that_is_added_later() -> None:
    def program(x: torch.Tensor, base: Any, derived: Any, owner: Any) -> torch.Tensor:
        owner.own = 3
        return x * owner.own

    def add(base: Any, derived: Any, owner: Any) -> None:
        derived.own = property(lambda self: 50, lambda self, value: vars(self).update(set_to=value))

    assert_same(program, add)
