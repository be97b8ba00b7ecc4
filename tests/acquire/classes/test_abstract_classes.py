"""Tests that classes which are registered with an abstract class after a call are noticed."""

import abc
import collections.abc as containers
import functools
import numbers
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder


class Base(abc.ABC):  # noqa: B024
    """An abstract class of the user."""


@typing.runtime_checkable
class Named(typing.Protocol):
    """A protocol that is checked by attributes."""

    def name(self) -> str:
        """Return a name."""


def matched(value: Any) -> int:
    """Return a number for the kind of pattern that a value matches."""
    match value:
        case [*_]:
            return 2
        case {}:
            return 4
    return 3


def fresh_dispatch() -> Callable[[Any], int]:
    """Return a function that is dispatched on an abstract class."""

    class Kind(abc.ABC):  # noqa: B024
        pass

    @functools.singledispatch
    def dispatch(value: Any) -> int:
        return 3

    dispatch.register(Kind, lambda value: 2)
    dispatch.kind = Kind  # type: ignore[attr-defined]
    return dispatch


QUESTIONS: dict[str, tuple[Callable[[Any], int], Callable[[type], Any]]] = {
    "the user's": (lambda value: 2 if isinstance(value, Base) else 3, Base.register),
    "several": (lambda value: 2 if isinstance(value, int | Base) else 3, Base.register),
    "the user's, a class": (lambda value: 2 if issubclass(type(value), Base) else 3, Base.register),
    "a sequence": (lambda value: 2 if isinstance(value, containers.Sequence) else 3, containers.Sequence.register),
    "an iterable": (lambda value: 2 if isinstance(value, containers.Iterable) else 3, containers.Mapping.register),
    "of typing": (lambda value: 2 if isinstance(value, typing.Mapping) else 3, containers.Mapping.register),
    "a number": (lambda value: 2 if isinstance(value, numbers.Number) else 3, numbers.Number.register),
    "a matched sequence": (matched, containers.MutableSequence.register),
    "a matched mapping": (matched, containers.Mapping.register),
    "a protocol, the class": (
        lambda value: 2 if isinstance(value, Named) else 3, lambda kind: setattr(kind, "name", lambda self: "")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_registered_class_is_noticed(name: str, cache: str) -> None:
    class Value:
        pass

    asked, change = QUESTIONS[name]
    value, x = Value(), torch.ones(2)
    compiled = thunder.jit(lambda value, x: x * asked(value), cache=cache)
    assert torch.equal(compiled(value, x), x * 3)
    assert torch.equal(compiled(value, x), x * 3)
    assert thunder.cache_misses(compiled) == 1
    change(Value)
    assert asked(value) != 3
    assert torch.equal(compiled(value, x), x * asked(value))


def test_attribute_of_protocol_is_noticed_in_the_object() -> None:
    class Value:
        pass

    value, x = Value(), torch.ones(2)
    compiled = thunder.jit(lambda value, x: x * (2 if isinstance(value, Named) else 3))
    assert torch.equal(compiled(value, x), x * 3)
    value.name = lambda: ""  # type: ignore[attr-defined]
    assert torch.equal(compiled(value, x), x * 2)


def test_class_registered_for_single_dispatch_is_noticed() -> None:
    class Value:
        pass

    dispatch = fresh_dispatch()
    value, x = Value(), torch.ones(2)
    compiled = thunder.jit(lambda value, x: x * dispatch(value))
    assert torch.equal(compiled(value, x), x * 3)
    dispatch.kind.register(Value)  # type: ignore[attr-defined]
    assert dispatch(value) == 2
    assert torch.equal(compiled(value, x), x * 2)


def test_objects_and_classes_of_the_program_are_asked() -> None:
    class Value:
        pass

    def program(x: torch.Tensor) -> torch.Tensor:
        class Made(abc.ABC):  # noqa: B024
            pass

        return x * (2 if isinstance(Value(), Base) else 3) * (5 if isinstance(Value(), Made) else 7)

    x = torch.ones(2)
    compiled = thunder.jit(program)
    assert torch.equal(compiled(x), x * 21)
    Base.register(Value)
    assert torch.equal(compiled(x), x * 14)


def test_other_registrations_need_no_new_program() -> None:
    class Value:
        pass

    class Other:
        pass

    x = torch.ones(2)
    compiled = thunder.jit(lambda value, x: x * (2 if isinstance(value, Base) else 3))
    compiled(Value(), x)
    Base.register(Other)
    compiled(Value(), x)
    assert thunder.cache_misses(compiled) == 1
