"""Counters that are incremented together have eager's values, and nothing reads them at another time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.passes.transforms.increments import IncrementTogether

Program = Callable[[list[Tensor], Tensor], Any]
ON_CPU = IncrementTogether(devices=("cpu",))


def layers(counters: list[Tensor], x: Tensor) -> Tensor:
    for counter in counters:
        x = (x + counter).sin()
        counter.add_(1)
    return x


def read_again(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[1].add_(1)
    return x * counters[0] + counters[1].add_(1)


def other_numbers(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[1].add_(2)
    counters[2].add_(2)
    return x + 1


def one_counter_twice(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[0].add_(1)
    return x


def views_of_one(counters: list[Tensor], x: Tensor) -> Tensor:
    both = torch.zeros(2, dtype=torch.int64)
    first, second = both[0], both[1]
    first.add_(3)
    second.add_(3)
    y = x[:2] + first
    both.mul_(2)
    return y + both


def returned(counters: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    y = counters[0].add_(1)
    counters[1].add_(1)
    return y, x


def floats(counters: list[Tensor], x: Tensor) -> Tensor:
    x.add_(1)
    (x + 1).add_(1)
    return x


def before_error(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    y = x.index_select(0, counters[2].view(1))
    counters[1].add_(1)
    return y


# The number of additions in place of each program, and after the transform.
PROGRAMS: dict[Program, tuple[int, int]] = {
    layers: (3, 1),
    read_again: (3, 2),
    other_numbers: (3, 2),
    one_counter_twice: (2, 2),
    views_of_one: (2, 2),
    returned: (2, 1),
    floats: (2, 2),
    before_error: (2, 2),
}


def inputs() -> tuple[list[Tensor], Tensor]:
    return [torch.tensor(number) for number in (2, 5, 0)], torch.arange(3.0)


def additions(compiled: Any) -> int:
    names = [bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
    return names.count("add_") + names.count("_foreach_add_")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_increments_are_joined_and_equal_eager(program: Program) -> None:
    compiled = thunder.jit(program, transforms=[ON_CPU], executors=["torch"])
    plain = thunder.jit(program, executors=["torch"])
    (counters, x), (wanted_counters, wanted_x) = inputs(), inputs()
    for _ in range(3):
        found, wanted = compiled(counters, x), program(wanted_counters, wanted_x)
        torch.testing.assert_close((found, counters, x), (wanted, wanted_counters, wanted_x), rtol=0, atol=0)
    plain(*inputs())
    assert (additions(plain), additions(compiled)) == PROGRAMS[program]


def test_counters_with_the_same_memory_are_incremented_twice() -> None:
    compiled = thunder.jit(layers, transforms=[ON_CPU], executors=["torch"])
    for shared in (False, True):
        counter = torch.tensor(1)
        counters = [counter, counter.view(()) if shared else torch.tensor(1), torch.tensor(4)]
        again = [counter.clone()] * 2 if shared else [one.clone() for one in counters]
        again = [*again[:2], torch.tensor(4)]
        x = torch.ones(2)
        assert torch.equal(compiled(counters, x), layers(again, x))
        assert [int(one) for one in counters] == [int(one) for one in again]


def test_the_cpu_is_left_alone_by_default() -> None:
    compiled = thunder.jit(layers, transforms=[IncrementTogether()], executors=["torch"])
    compiled(*inputs())
    assert additions(compiled) == 3
