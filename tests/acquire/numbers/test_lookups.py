"""Counters that are used as keys: one program for each looked-up value, and results match eager."""

from __future__ import annotations

import bisect
import collections
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

pytestmark = pytest.mark.filterwarnings(f"ignore::{RecompileWarning.__module__}.{RecompileWarning.__name__}")
STEPS = 20
MOST_PROGRAMS = 7


class State:
    """The state of a training step."""

    def __init__(self) -> None:
        self.n = 0
        self.table = {3: 10.0, 6: 20.0, 9: 30.0}
        self.names = {"step_3": 2.0, "step_12": 3.0, "other": 4.0, "a\0b6": 5.0}
        self.milestones = [5, 10, 15]
        self.counted = collections.Counter(self.milestones)


def of_tensor(state: State, x: Any) -> Any:
    number = int(x.sum())
    return x * 2 if number in {2, 5} else x


LOOKUPS = {
    "in a dict": lambda s, x: x * 2 if s.n in s.table else x,
    "not in a dict of the program": lambda s, x: x * 2 if s.n not in {1: 0, 7: 0} else x,
    "get": lambda s, x: x * s.table.get(s.n, 1.0),
    "get of a sum": lambda s, x: x * s.table.get(s.n + 2, 1.0),
    "in keys": lambda s, x: x * 2 if s.n in s.table.keys() else x,  # noqa: SIM118
    "in a set": lambda s, x: x * 2 if s.n in {1, 5} else x,
    "in a frozenset of several classes": lambda s, x: x * 2 if s.n in frozenset((1, 5.0, "a", None)) else x,
    "in a counter": lambda s, x: x * 2 if s.n in s.counted else x,
    "an item that is there": lambda s, x: x * (s.table[s.n] if s.n in s.table else 1.0),  # noqa: SIM401
    "bisect_right": lambda s, x: x * 0.5 ** bisect.bisect_right(s.milestones, s.n),
    "bisect_left": lambda s, x: x * 0.5 ** bisect.bisect_left(s.milestones, s.n),
    "round to a digit": lambda s, x: x * round(s.n / 7, 1),
    "is_integer": lambda s, x: x * 2 if (s.n / 5).is_integer() else x,
    "a text in a tuple": lambda s, x: x * 2 if str(s.n) in ("3", "7") else x,
    "a text in a dict": lambda s, x: x * 2 if f"step_{s.n}" in s.names else x,
    "a text that is got": lambda s, x: x * s.names.get(f"step_{s.n}", 1.0),
    "a text with a NUL": lambda s, x: x * s.names.get(f"a\0b{s.n}", 1.0),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_counters_used_as_keys_are_traced_for_each_value(name: str) -> None:
    def step(state: State, x: Any) -> Any:
        state.n += 1
        return LOOKUPS[name](state, x)

    compiled, ours, eager, x = thunder.jit(step), State(), State(), torch.ones(2)
    for _ in range(STEPS):
        torch.testing.assert_close(compiled(ours, x), step(eager, x))
    assert thunder.cache_misses(compiled) <= MOST_PROGRAMS


def test_added_and_removed_keys_are_noticed() -> None:
    def step(state: State, x: Any) -> Any:
        state.n += 1
        return x * state.table.get(state.n, 1.0)

    compiled, ours, eager, x = thunder.jit(step), State(), State(), torch.ones(2)
    for number in range(12):
        if number == 5:
            ours.table[11] = eager.table[11] = 7.0
        if number == 7:
            ours.table[9] = eager.table[9] = 8.0
        torch.testing.assert_close(compiled(ours, x), step(eager, x))


def test_a_number_out_of_a_tensor_is_looked_up_by_its_value() -> None:
    compiled = thunder.jit(of_tensor)
    for value in (0.0, 1.0, 2.0, 2.5, 3.0, 1.0):
        x = torch.full((2,), value)
        torch.testing.assert_close(compiled(State(), x), of_tensor(State(), x))


def test_a_key_that_is_missing_raises_the_error_of_eager() -> None:
    def step(state: State, x: Any) -> Any:
        state.n += 1
        return x * state.table[state.n + 2]

    compiled, ours, eager, x = thunder.jit(step), State(), State(), torch.ones(2)
    for _ in range(8):
        outcomes = []
        for function, state in ((compiled, ours), (step, eager)):
            try:
                outcomes.append(function(state, x).tolist())
            except KeyError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def schedules(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    scheduler = torch.optim.lr_scheduler
    return {
        "MultiStepLR": lambda: scheduler.MultiStepLR(optimizer, [5, 12]),
        "SequentialLR": lambda: scheduler.SequentialLR(
            optimizer, [scheduler.ConstantLR(optimizer, 0.1, 2), scheduler.ExponentialLR(optimizer, 0.9)], [4]
        ),
    }


@pytest.mark.parametrize("name", ["MultiStepLR", "SequentialLR"])
def test_schedules_in_a_compiled_step_are_traced_a_few_times(name: str) -> None:
    def setup() -> tuple[Any, ...]:
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        return parameter, optimizer, schedules(optimizer)[name]()

    def step(parameter: Any, optimizer: Any, schedule: Any) -> Any:
        optimizer.zero_grad()
        (parameter * parameter).sum().backward()
        optimizer.step()
        schedule.step()
        return parameter

    compiled, ours, eager = thunder.jit(step), setup(), setup()
    for _ in range(STEPS):
        torch.testing.assert_close(compiled(*ours), step(*eager))
        assert ours[1].param_groups[0]["lr"] == eager[1].param_groups[0]["lr"]
    assert thunder.cache_misses(compiled) <= MOST_PROGRAMS


class Milestone:
    """An object that is compared with numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __lt__(self, other: Any) -> bool:
        return self.n < other

    def __gt__(self, other: Any) -> bool:
        return self.n > other


@pytest.mark.parametrize("search", [bisect.bisect_left, bisect.bisect_right])
def test_objects_that_are_compared_with_a_counter_are_guarded(search: Any) -> None:
    milestones = [Milestone(1), Milestone(5), Milestone(9)]

    def step(n: int, x: Any) -> Any:
        return x * search(milestones, n)

    compiled, x = thunder.jit(step), torch.ones(2)
    for n, middle in ((2, 5), (6, 5), (7, 5), (6, 8), (7, 8)):
        milestones[1].n = middle
        torch.testing.assert_close(compiled(n, x), step(n, x))
