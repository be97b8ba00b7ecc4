"""Numbers in lists, dicts, objects and defaults become symbolic individually, whether they are read one by one or as a
whole.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.frontend.acquire.outside import function_reads, outside

FACTORS: list[Any] = [1.0, 2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore threads of other tests, such as those of pools: they have no access to these containers."""
    for module in (outside, function_reads):
        monkeypatch.setattr(module, "is_only_thread", lambda: True)


@dataclasses.dataclass
class Config:
    """Numbers of the user in attributes and in containers."""

    scale: float = 1.0
    sizes: list[int] = dataclasses.field(default_factory=list)
    inner: Config | None = None


def multiplied(x: Tensor, numbers: Any) -> Tensor:
    for number in numbers:
        x = x * number
    return x


def unpacked(x: Tensor, numbers: list[Any]) -> Tensor:
    scale, bias = numbers
    return x * scale + bias


def of_keywords(x: Tensor, *, scale: float, bias: int) -> Tensor:
    return x * scale + bias


def changed(x: Tensor, numbers: list[Any]) -> Tensor:
    """Read the whole list, and then change it."""
    total = sum(numbers)
    numbers.append(numbers[0])
    numbers[1] = 5
    return x * total + len(numbers)


def pair(number: int) -> list[Any]:
    return [number / 7, number]


# The program, and a function from a number to its second argument.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "a loop": (multiplied, pair),
    "a comprehension": (lambda x, numbers: x * sum([number * 2 for number in numbers]), pair),
    "a sum": (lambda x, numbers: x * sum(numbers) + max(numbers) - min(numbers), pair),
    "unpacked": (unpacked, pair),
    "arguments": (lambda x, numbers: torch.add(x, *numbers[1:]) + torch.ones(*numbers[1:]).sum(), pair),
    "pairs": (
        lambda x, numbers: multiplied(x, [left * right for left, right in zip(numbers, numbers, strict=True)]),
        pair,
    ),
    "a shape": (lambda x, shape: x.new_zeros(shape) + x.sum(), lambda number: [number, number + 1]),
    "an operation": (lambda x, lengths: functional.pad(x, lengths), lambda number: [number, number + 1]),
    "a tensor": (lambda x, numbers: x.sum() * torch.tensor(numbers), pair),
    "values of a dict": (lambda x, numbers: multiplied(x, numbers.values()), lambda n: {"a": n / 7, "b": n}),
    "keywords": (lambda x, numbers: of_keywords(x, **numbers), lambda n: {"scale": n / 7, "bias": n}),
    "an ordered dict": (lambda x, numbers: multiplied(x, dict(numbers).values()), lambda n: OrderedDict(a=n, b=n / 3)),
    "nested": (lambda x, given: multiplied(x, given[0]) + sum(given[1]["b"]), lambda n: [pair(n), {"b": [n, n / 2]}]),
    "tuples in a list": (lambda x, pairs: x * sum(one * other for one, other in pairs), lambda n: [(n, n / 7), (1, n)]),
    "a list that is changed": (changed, pair),
}


@pytest.mark.parametrize("mode", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_in_containers_that_are_passed_whole_are_symbolic(name: str, mode: Any) -> None:
    function, argument = PROGRAMS[name]
    compiled = thunder.jit(function, cache=mode)
    for number in (2, 3, 4, 9):
        ours, eagers, x = argument(number), argument(number), torch.randn(3)
        torch.testing.assert_close(compiled(x, ours), function(x, eagers))
        assert repr(ours) == repr(eagers)
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == (1 if mode == "symbolic values" else 2), thunder.recompile_reasons(
        compiled
    )


def test_list_is_unchanged_after_tracing() -> None:
    numbers = [1.5, 7, (2.5, 3)]
    before = [id(number) for number in numbers]
    compiled = thunder.jit(lambda x, numbers: (numbers, multiplied(x, numbers[:2])), cache="symbolic values")
    assert compiled(torch.ones(2), numbers)[0] is numbers
    assert [id(number) for number in numbers] == before
    with pytest.raises(ZeroDivisionError):
        thunder.jit(lambda x, numbers: x * sum(numbers[:2]) / 0 * (1 // 0), cache="symbolic values")(
            x := torch.ones(2), numbers
        )
    assert [id(number) for number in numbers] == before and x.sum() == 2


def test_c_code_receives_plain_python_numbers() -> None:
    """The program is specialized to these numbers; the sizes stay symbolic."""

    def written(x: Tensor, numbers: list[Any]) -> tuple[Tensor, str]:
        return x * sum(numbers), json.dumps(numbers)

    compiled = thunder.jit(written, cache="symbolic values")
    for length, number in ((3, 2), (5, 2), (7, 2), (7, 3)):
        x = torch.randn(length)
        found, wanted = compiled(x, pair(number)), written(x, pair(number))
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] == wanted[1]
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


def compare(function: Callable[..., Any], change: Callable[[int], None], argument: Any = None) -> None:
    """Compare a program whose numbers change from call to call with eager; by default there are two programs."""
    compiled = thunder.jit(function)
    given = () if argument is None else (argument,)
    for number in (2, 3, 4, 9):
        change(number)
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, *given), function(x, *given))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


class Named(NamedTuple):
    """Fields by name."""

    tensor: torch.Tensor
    count: int


class Made:
    """An object whose `__new__` takes a number that its `__init__`, which is that of `object`, gets too."""

    count: int

    def __new__(cls, count: int) -> Made:
        made = super().__new__(cls)
        made.count = count
        return made


@pytest.mark.parametrize("make", [lambda x: Named(x, x.size(0)), lambda x: Made(x.size(0))])
def test_numbers_that_an_object_is_made_of_are_symbolic(make: Any) -> None:
    compiled = thunder.jit(lambda x: x.sum(0) * make(x).count, cache="symbolic values")
    for size in (3, 5, 7):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), torch.full((2,), float(size * size)))
    assert thunder.cache_misses(compiled) == 1


def test_numbers_of_objects_are_symbolic() -> None:
    config = Config(inner=Config())

    def change(number: int) -> None:
        config.scale, config.sizes = number / 7, [number, number + 1]
        assert config.inner is not None
        config.inner.scale = number / 3

    compare(lambda x, c: multiplied(x * c.scale, c.sizes) * c.inner.scale, change, config)


def test_numbers_of_globals_and_closures_are_symbolic() -> None:
    scale, numbers = 1.0, {"a": [1, 2]}

    def change(number: int) -> None:
        nonlocal scale
        scale, numbers["a"], FACTORS[:] = number / 7, [number, 1], pair(number)

    compare(lambda x: multiplied(x * scale, FACTORS) + sum(numbers["a"]), change)


def test_numbers_of_defaults_are_symbolic() -> None:
    def scaled(x: Tensor, scale: float = 1.0, more: tuple[int, int] = (1, 2), *, bias: int = 1) -> Tensor:
        return x * scale + bias + sum(more)

    def change(number: int) -> None:
        scaled.__defaults__ = (number / 7, (number, 1))
        scaled.__kwdefaults__ = {"bias": number}

    compare(scaled, change)
    assert scaled.__defaults__ == (9 / 7, (9, 1))
    before = copy.copy(scaled.__defaults__)
    compare(lambda x: scaled(x), change)
    assert scaled.__defaults__ == before


def test_numbers_of_a_module_are_symbolic() -> None:
    class Scaled(torch.nn.Module):
        """A module that multiplies by its numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.sizes, self.options = 1.0, [1, 2], {"a": 1.0}

        def forward(self, x: Tensor) -> Tensor:
            return multiplied(x * self.scale, self.sizes) * self.options["a"]

    model = Scaled()

    def change(number: int) -> None:
        model.scale, model.sizes, model.options = number / 7, [number, number + 1], {"a": number / 3}

    compare(model, change)
