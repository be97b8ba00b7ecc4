"""Functions under `functools.lru_cache` that are called with symbolic numbers are computed at each call."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

LENGTHS = (4, 6, 4, 10, 6, 8, 4)
Program = Callable[[torch.Tensor], Any]


class State:
    """The outside state of a program, and the programs themselves."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.factor = 2

    def containers(self) -> Program:
        @functools.lru_cache(maxsize=8)
        def halves(shape: tuple[int, ...], options: tuple[tuple[str, int], ...]) -> tuple[list[int], dict[int, int]]:
            return [shape[0] // dict(options)["parts"], -1], {0: shape[0], 1: 2}

        def program(x: torch.Tensor) -> Any:
            shape, sizes = halves(tuple(x.shape), (("parts", 2),))
            return x.reshape(shape) * sizes[1] + sizes[0]

        return program

    def number(self) -> Program:
        @functools.cache
        def offset(number: int, *, scale: float = 0.5) -> float:
            if number % 2:
                raise ValueError("odd")
            return number * scale

        return lambda x: x * offset(x.shape[0]) + offset(len(x), scale=2)

    def method(self) -> Program:
        class Model(torch.nn.Module):
            factor = 3

            @functools.lru_cache(maxsize=2)  # noqa: B019 - the cache keeps the model, as in users' code
            def length(self, size: int) -> int:
                return size * self.factor

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.length(x.shape[0])

        return Model()

    def effect(self) -> Program:
        @functools.cache
        def noted(number: int) -> int:
            self.seen.append(int(number))
            return number + 1

        return lambda x: x * noted(x.shape[0])

    def tensor(self) -> Program:
        @functools.cache
        def positions(number: int) -> torch.Tensor:
            return torch.arange(number)

        return lambda x: x + positions(x.shape[0])

    def number_of_tensor(self) -> Program:
        @functools.cache
        def total(number: int) -> int:
            return int(torch.arange(number).sum())

        return lambda x: x + total(x.shape[0])

    def changed_list(self) -> Program:
        @functools.cache
        def sizes(number: int) -> list[int]:
            return [number]

        def program(x: torch.Tensor) -> torch.Tensor:
            found = sizes(x.shape[0])
            found.append(1)
            return x * len(found) + sum(found)

        return program

    def stale(self) -> Program:
        @functools.cache
        def scaled(number: int) -> int:
            return number * self.factor

        for length in (4, 6):
            scaled(length)
        self.factor = 3
        return lambda x: x * scaled(x.shape[0])

    def unhashable(self) -> Program:
        @functools.cache
        def first(numbers: list[int]) -> int:
            return numbers[0]

        def program(x: torch.Tensor) -> torch.Tensor:
            try:
                return x * first([x.shape[0]])
            except TypeError:
                return x + 1

        return program

    def recursive(self) -> Program:
        @functools.cache
        def total(number: int) -> int:
            return number + total(number - 1) if number > 0 else 0

        return lambda x: x * total(x.shape[0])


ONE_PROGRAM = ("containers", "number", "method")
KINDS = (*ONE_PROGRAM, "effect", "tensor", "number_of_tensor", "changed_list", "stale", "unhashable", "recursive")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*symbolic")
def test_results_and_effects_are_those_of_eager(kind: str) -> None:
    eager, traced = State(), State()
    program, compiled = getattr(eager, kind)(), thunder.jit(getattr(traced, kind)(), cache="symbolic values")
    for length in LENGTHS:
        x = torch.linspace(-1, 1, length)
        torch.testing.assert_close(compiled(x), program(x))
        assert traced.seen == eager.seen
    if kind in ONE_PROGRAM:
        assert thunder.cache_misses(compiled) == 1


def test_error_of_a_cached_function_is_raised() -> None:
    compiled = thunder.jit(State().number(), cache="symbolic values")
    torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 10.0))
    with pytest.raises(ValueError, match="odd"):
        compiled(torch.ones(3))
    torch.testing.assert_close(compiled(torch.ones(6)), torch.full((6,), 15.0))


def test_returned_list_is_the_list_of_the_cache() -> None:
    @functools.cache
    def sizes(number: int) -> list[int]:
        return [number]

    compiled = thunder.jit(lambda x: (x + 1, sizes(x.shape[0])), cache="symbolic values")
    for length in LENGTHS:
        assert compiled(torch.ones(length))[1] is sizes(length)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_other_values_that_enter_the_cache_keep_a_program(cache: Any) -> None:
    @functools.lru_cache
    def scaled(number: int) -> int:
        return number * 2

    @functools.lru_cache
    def named(name: str) -> list[str]:
        return [name]

    named("first")
    compiled = thunder.jit(lambda x: x * scaled(3) + len(named("first")), cache=cache)
    for number in range(4):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 7.0))
        scaled(number)
        named(str(number))
    assert thunder.cache_misses(compiled) == 1


def test_artifact_computes_the_result_of_a_cached_function(tmp_path: Any) -> None:
    program = State().containers()
    compiled = thunder.jit(program, cache="symbolic values")
    compiled(torch.ones(4))
    thunder.save(compiled, tmp_path / "artifact")
    loaded = thunder.load(tmp_path / "artifact", program)
    for length in LENGTHS:
        x = torch.linspace(-1, 1, length)
        torch.testing.assert_close(loaded(x), copy.deepcopy(program)(x))
