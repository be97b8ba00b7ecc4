"""Classes that a program creates and that leave it: their state belongs to one call."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning
from thunder_core.frontend.acquire.acquire import acquire

STORED: list[Any] = []


def computed_value(x: Tensor) -> Any:
    class Box:
        value = x + 1

    return Box


def value_in_a_closure(x: Tensor) -> Any:
    y = x * 2

    class Box:
        @staticmethod
        def value() -> Tensor:
            return y

    return Box()


def value_set_later(x: Tensor) -> Any:
    kind = type("Box", (), {})
    kind.value = [x.sum()]  # type: ignore[attr-defined]
    return kind


def value_in_a_base(x: Tensor) -> Any:
    class Base:
        value = (x, 1)

    class Box(Base):
        pass

    return Box(), x + 1


def stored_class(x: Tensor) -> Any:
    class Box:
        value = x + 1

    STORED.append(Box)
    return x * 2


def container(x: Tensor) -> Any:
    class Box:
        value: list[int] = []  # noqa: RUF012

    return Box, x + 1


def read(result: Any) -> Any:
    """Return the values of a result, whose classes are compared by their `value`."""
    if isinstance(result, tuple):
        return [read(part) for part in result]
    value = getattr(result, "value", result)
    return value() if callable(value) else value


@pytest.mark.parametrize(
    "program", [computed_value, value_in_a_closure, value_set_later, value_in_a_base, stored_class, container]
)
def test_state_of_a_created_class_is_new_at_each_call(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    classes = []
    for number in (1.0, 2.0, 3.0):
        STORED.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecompileWarning)
            found = compiled(torch.full((2,), number))
        stored = [kind.value for kind in STORED]
        STORED.clear()
        wanted = program(torch.full((2,), number))
        torch.testing.assert_close(read(found), read(wanted))
        torch.testing.assert_close(stored, [kind.value for kind in STORED])
        classes.append(found)
    first = read(classes[0])
    if program is container:
        first[0].append(1)
        assert read(classes[1])[0] == []


def test_such_a_class_is_refused_where_no_call_may_run_in_eager() -> None:
    with pytest.raises(CannotReplay, match="creates anew at each call"):
        acquire(computed_value, (torch.ones(2),), {})


def plain_class(x: Tensor) -> Any:
    class Box:
        number = 3

        def __init__(self, value: Tensor) -> None:
            self.value = value

    return Box(x + 1)


def plain_dataclass(x: Tensor) -> Any:
    @dataclass
    class Box:
        value: Tensor
        number: int = 3

    return Box(x + 1)


def plain_namedtuple(x: Tensor) -> Any:
    return namedtuple("Box", ["value", "number"])(x + 1, 3)


@pytest.mark.parametrize("program", [plain_class, plain_dataclass, plain_namedtuple])
def test_instances_of_other_created_classes_stay_compiled(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    for number in (1.0, 2.0):
        x = torch.full((2,), number)
        assert torch.equal(compiled(x).value, x + 1)
        assert compiled(x).number == 3
    assert thunder.cache_misses(compiled) == 1
