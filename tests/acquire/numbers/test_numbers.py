"""Outside numbers that change from call to call: counters are not guarded, and the conditions on them are."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core import functional

CALLS = 0


class Counts(nn.Module):
    """A module with state that its forward changes by calling `change`."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2)
        self.change = change
        self.calls = 0
        self.large = 2**62
        self.level = 0.5
        self.table: dict[str, Any] = {"n": 3, "step": 2}
        self.row: list[Any] = [1, 10, "x"]
        self.log: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        return self.linear(x), self.change(self)


def state(module: nn.Module) -> dict[str, Any]:
    """Return the state of a module, with the classes of numbers."""
    names = ("calls", "large", "level", "table", "row", "log")
    return {name: (type(module.__dict__[name]), repr(module.__dict__[name])) for name in names}


def increment(self: Any) -> None:
    self.calls += 1


def increment_item(self: Any) -> None:
    self.table["n"] += 1


def increment_entry(self: Any) -> None:
    self.row[0] += 1


def increment_last(self: Any) -> None:
    self.row[-2] *= 2


def increment_twice(self: Any) -> int:
    self.table["n"] += 1
    self.table["n"] += self.table["step"]
    return self.table["n"] + self.table.get("step")


def overflow(self: Any) -> int:
    self.large = self.large * 3 + 1
    return self.large


def mix(self: Any) -> float:
    self.calls += 1
    self.level = self.level * 0.9 + self.calls / 7 - self.calls // 2 + self.calls % 3 + (-self.calls) ** 3
    return self.level


def remember(self: Any) -> None:
    self.calls += 1
    self.log.append((self.calls, {"half": self.calls / 2}))


def print_it(self: Any) -> None:
    self.calls += 1
    print("call", self.calls)


def nest(self: Any) -> Any:
    self.calls += 1
    return {"calls": self.calls, "all": [self.calls, (self.calls,)]}


def as_size(self: Any) -> Tensor:
    self.calls += 1
    return torch.zeros(self.calls)


def for_numpy(self: Any) -> Any:
    self.calls += 1
    return str(np.array([self.calls, 2]).dtype), np.int64(self.calls).item()


COUNTERS: list[tuple[Callable[[Any], Any], int]] = [
    (increment, 2),
    (increment_item, 2),
    (increment_entry, 2),
    (increment_last, 2),
    (increment_twice, 2),
    (overflow, 2),
    (mix, 2),
    (remember, 2),
    (print_it, 2),
    (as_size, 2),
    (nest, 2),
    (for_numpy, 2),
]


def alternate(self: Any) -> str:
    self.calls += 1
    return "even" if self.calls % 2 == 0 else "odd"


def threshold(self: Any) -> bool:
    self.calls += 1
    return self.calls > 3


def truth(self: Any) -> str:
    self.calls += 1
    return "yes" if self.calls - 3 else "no"


def modulo_index(self: Any) -> Any:
    self.calls += 1
    return self.row[self.calls % 3]


def look_at_the_class(self: Any) -> Any:
    self.calls += 1
    kind: Any = type(self.calls)
    match self.calls:
        case bool():
            named = "bool"
        case int():
            named = "int"
        case _:
            named = "other"
    return kind.__name__, self.calls.__class__.__name__, isinstance(self.calls, int), named


DECIDING: list[tuple[Callable[[Any], Any], int]] = [
    (alternate, 3),
    (threshold, 3),
    (truth, 3),
    (modulo_index, 4),
    (look_at_the_class, 2),
]


def formatted(self: Any) -> str:
    self.calls += 1
    return f"{self.calls:03d} {self.calls} {self.calls!r}" + "%d %s".__mod__((self.calls, 1)) + f"{self.calls}"


def as_json(self: Any) -> str:
    self.calls += 1
    return json.dumps({"calls": [self.calls]})


def as_key(self: Any) -> Any:
    self.calls += 1
    return {self.calls: 1, 2: 5}.get(2)


def as_range(self: Any) -> list[int]:
    self.calls += 1
    return [*range(self.calls)]


def made_of_tensors(self: Any) -> Tensor:
    self.calls += 1
    return torch.as_tensor(np.zeros(self.calls))


def for_c(self: Any) -> Any:
    self.calls += 1
    length = dt.timedelta(self.calls).days
    return str(decimal.Decimal(self.calls)), length, int.__add__(self.calls, 1), self.calls.bit_length()


def swallow(self: Any) -> str:
    self.calls += 1
    try:
        return json.dumps([self.calls])
    except BaseException:
        return "none"


def seed_a_generator(self: Any) -> Any:
    self.calls += 1
    generator = torch.Generator()
    generator.manual_seed(self.calls)
    return torch.rand(2, generator=generator), generator.initial_seed()


def parts(self: Any) -> Any:
    self.calls += 1
    return self.calls.real, self.calls.denominator, hasattr(self.calls, "numerator"), getattr(self.calls, "imag", None)


def shifted(self: Any) -> Any:
    self.calls += 1
    return self.calls << 2, self.calls & 1, ~self.calls, divmod(self.calls, 2), round(self.calls), max(self.calls, 3)


def sorted_away(self: Any) -> Any:
    self.calls += 1
    return sorted([3, self.calls, 1]), sum([self.calls, 1]), operator.index(self.calls)


ASKING = [
    formatted,
    as_json,
    as_key,
    as_range,
    made_of_tensors,
    for_c,
    swallow,
    seed_a_generator,
    parts,
    sorted_away,
]


def described(result: Any) -> Any:
    """Return a result with the classes of its values."""
    if isinstance(result, Tensor):
        return tuple(result.shape), result.detach().tolist()
    return type(result), repr(result)


def assert_alike(change: Callable[[Any], Any], calls: int = 7, **options: Any) -> Any:
    """Run a compiled module and an eager module side by side; return the compiled module."""
    eager, module = Counts(change), Counts(change)
    compiled = thunder.jit(module, **options)
    x = torch.tensor([1.0, 2.0])
    for _ in range(calls):
        expected, found = eager(x), compiled(x)
        assert [described(value) for value in found] == [described(item) for item in expected]
        assert state(module) == state(eager)
    return compiled


@pytest.mark.parametrize(("change", "misses"), COUNTERS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_number_that_is_written_back_is_not_guarded(
    change: Callable[[Any], Any], misses: int, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = assert_alike(change)
    assert thunder.cache_misses(compiled) == misses
    assert thunder.last_backward_reason(compiled) == ""  # all inputs of the computation are tensors
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted([f"call {number}" for number in range(1, 8)] * 2 if change is print_it else [])


@pytest.mark.parametrize(("change", "misses"), DECIDING, ids=lambda one: getattr(one, "__name__", ""))
def test_outcome_of_a_comparison_is_guarded_and_not_the_number(change: Callable[[Any], Any], misses: int) -> None:
    compiled = assert_alike(change, calls=9)
    assert thunder.cache_misses(compiled) == misses


@pytest.mark.parametrize("change", ASKING, ids=lambda function: function.__name__)
def test_a_number_whose_value_is_needed_is_guarded(change: Callable[[Any], Any]) -> None:
    assert thunder.cache_misses(assert_alike(change)) > 2


def test_shifts_and_extremes_are_expressions() -> None:
    assert thunder.cache_misses(assert_alike(shifted)) == 2


def test_counters_work_where_values_are_refused() -> None:
    compiled = assert_alike(alternate, data_dependent="error", sharp_edges="error")
    assert thunder.cache_misses(compiled) == 3
    assert "module.calls: required ((1 + s0) % 2) != 0, needed at" in " ".join(
        map(str, thunder.last_program(compiled).guards)
    )


def test_counter_can_be_a_seed() -> None:
    def program(box: dict[str, int]) -> Tensor:
        box["n"] += 1
        torch.manual_seed(box["n"])
        return torch.rand(2)

    compiled, box = thunder.jit(program), {"n": 0}
    found = [compiled(box) for _ in range(5)]
    torch.testing.assert_close(found, [program({"n": count}) for count in range(5)], rtol=0, atol=0)
    assert (thunder.cache_misses(compiled), box["n"]) == (2, 5)


def test_global_and_nonlocal_counters_match_eager() -> None:
    count = 10

    def program(x: Tensor) -> tuple[Tensor, int]:
        nonlocal count
        global CALLS
        count += 2
        CALLS += 1
        return x + 1, count - CALLS

    compiled = thunder.jit(program)
    before = CALLS
    found = [compiled(torch.ones(1))[1] for _ in range(6)]
    assert (count, CALLS) == (22, before + 6)
    assert found == [11 - before + step for step in range(6)]
    assert thunder.cache_misses(compiled) == 2


def test_another_class_of_number_is_another_program() -> None:
    module = Counts(increment)
    compiled = thunder.jit(module)
    x = torch.ones(2)
    for value, expected in ((0, 1), (1, 2), (2, 3), (True, 2), (2.5, 3.5), (7, 8)):
        module.calls = value  # type: ignore[assignment]
        compiled(x)
        assert (type(module.calls), module.calls) == (type(expected), expected)


def test_division_by_zero_that_the_program_handles_matches_eager() -> None:
    def inverse(self: Any) -> float:
        self.calls += 1
        try:
            return 1 / (self.calls - 4)
        except ZeroDivisionError:
            return 0.0

    assert thunder.cache_misses(assert_alike(inverse)) == 3


def test_division_by_zero_raises_as_in_eager() -> None:
    def program(self: Any) -> float:
        self.calls += 1
        return 1 / (self.calls - 5)

    eager, module = Counts(program), Counts(program)
    compiled = thunder.jit(module)
    x = torch.ones(2)
    for step in range(7):
        outcomes = []
        for run in (eager, compiled):
            try:
                outcomes.append(run(x)[1])
            except ZeroDivisionError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], step
        eager.calls = module.calls = step + 1


def test_numbers_combine_with_tensors_and_unknown_numbers() -> None:
    def program(box: dict[str, Any], x: Tensor) -> Any:
        box["n"] += 1
        total = x.sum().item() * box["n"]
        return x * box["n"], total, x / total

    eager, fast = {"n": 1}, {"n": 1}
    compiled = thunder.jit(program)
    for step in range(5):
        x = torch.ones(2) + step
        for found, expected in zip(compiled(fast, x), program(eager, x), strict=True):
            assert described(found) == described(expected)
        assert eager == fast
    assert thunder.cache_misses(compiled) == 2


def test_gradients_of_operands_of_a_number_match_eager() -> None:
    def program(box: dict[str, Any], x: Tensor) -> Tensor:
        box["n"] += 1
        return (x * box["n"]).sin().sum()

    boxes: tuple[dict[str, int], dict[str, int]] = ({"n": 0}, {"n": 0})
    compiled = thunder.jit(program)
    for _ in range(3):
        grads = []
        for function, box in zip((program, compiled), boxes, strict=True):
            x = torch.ones(2, requires_grad=True)
            function(box, x).backward()
            grads.append(x.grad)
        assert grads[0] is not None and torch.equal(*grads)


def test_functional_programs_guard_their_arguments_alone() -> None:
    class Box:
        calls = 0

    def program(box: Box, x: Tensor) -> Tensor:
        return x * 2 if box.calls % 2 else x

    compiled, box, x = functional.jit(program), Box(), torch.ones(1)
    for step in range(5):
        box.calls = step
        assert compiled(box, x).item() == (2.0 if step % 2 else 1.0)


def test_list_is_written_at_one_index_and_read_at_another() -> None:
    def program(row: list[Any], x: Tensor) -> Any:
        row[0] += 1
        row[1] = row[0]
        return x * row[2], len(row)

    compiled, row = thunder.jit(program), [0, 0, 3.0]
    for step in range(1, 5):
        assert compiled(row, torch.ones(1)) == (torch.tensor([3.0]), 3)
        assert row == [step, step, 3.0]
    row[2] = 4.0
    assert compiled(row, torch.ones(1))[0].item() == 4.0
    row.append(0)
    assert compiled(row, torch.ones(1))[1] == 4


def test_grown_list_is_written_at_one_index() -> None:
    def program(row: list[Any], x: Tensor) -> Any:
        row.append(len(row))
        row[0] += 1
        return x * row[1]

    rows: tuple[list[Any], list[Any]] = ([0, 2], [0, 2])
    compiled = thunder.jit(program)
    for _ in range(4):
        assert torch.equal(compiled(rows[0], torch.ones(1)), program(rows[1], torch.ones(1)))
        assert rows[0] == rows[1]


class Converted(torch.Tensor):
    """A tensor with conversions of its own."""

    def __float__(self) -> float:
        return 42.0

    def __int__(self) -> int:
        return 43


def test_conversions_of_a_subclass_of_tensors_are_called() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * float(y), x * int(y)

    compiled, x = thunder.jit(program), torch.ones(2)
    for value in (1.0, 2.0):
        y = torch.tensor([value]).as_subclass(Converted)
        torch.testing.assert_close(compiled(x, y), program(x, y))
