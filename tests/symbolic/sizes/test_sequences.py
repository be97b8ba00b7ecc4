"""Lists, tuples and ranges of symbolic length: one program serves all lengths if the items are not read one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.same import assert_same

Program = Callable[[Tensor], Any]
SIZES = (12, 9, 16, 5, 12, 21, 64, 8)


def left_padded(x: Tensor) -> Tensor:
    """A mask of positions from the left, as CPM-Ant computes it."""
    positions = torch.tensor(list(range(x.shape[0] - 2))[::-1], device=x.device)
    return (positions[None, :].repeat(2, 1) < 4).sum(1)


def pooled(x: Tensor) -> list[Tensor]:
    """The relative positions of pooled blocks, as Funnel computes them."""
    pos = list(range(x.shape[0]))
    results = []
    for block in range(3):
        first_positions = [-(2**block) + 1]
        pooled_pos = first_positions + pos[1:-1][::2] if block else pos
        stride = 2**block
        first = pooled_pos[0] - pos[0] + 2 * len(pooled_pos) * stride
        results.append(torch.arange(first, pooled_pos[0] - pos[-1] - 1, -stride))
        pos = pooled_pos
    return results


def counted(x: Tensor) -> Any:
    pos = list(range(3, x.shape[0]))
    return len(pos), pos[0], pos[-1], bool(pos), isinstance(pos, list), type(pos) is list, type(tuple(pos))


def shared(x: Tensor) -> Any:
    pos = list(range(x.shape[0]))
    return {"pos": pos, "same": pos, "other": pos[1:], "range": range(1, x.shape[0]), "ones": (1,) * x.shape[0]}


ONE_PROGRAM: dict[str, Program] = {
    "range": lambda x: torch.tensor(range(x.shape[0])),
    "list of a range": lambda x: x + torch.tensor(list(range(x.shape[0]))),
    "tuple of a range": lambda x: torch.tensor(tuple(range(1, x.shape[0] + 1)), dtype=torch.float32),
    "steps": lambda x: torch.as_tensor(list(range(2, 2 * x.shape[0], 3))),
    "steps down": lambda x: torch.tensor(list(range(x.shape[0], 0, -2)), dtype=torch.float64),
    "reversed": lambda x: torch.tensor(list(range(x.shape[0]))[::-1]),
    "reversed with a stride": lambda x: torch.tensor(list(range(x.shape[0]))[::-2]),
    "every second": lambda x: torch.tensor(list(range(x.shape[0]))[::2]),
    "slice": lambda x: torch.tensor(list(range(x.shape[0]))[1:-1]),
    "last three": lambda x: torch.tensor(list(range(x.shape[0]))[-3:]),
    "all but the last three": lambda x: torch.tensor(list(range(x.shape[0]))[:-3]),
    "first four": lambda x: list(range(x.shape[0]))[:4],
    "slice of a range": lambda x: torch.tensor(range(x.shape[0])[2:]),
    "slice by a size": lambda x: torch.tensor(list(range(100))[: x.shape[0]] if x.shape[0] > 100 else [1]),
    "half": lambda x: torch.tensor(list(range(x.shape[0]))[: x.shape[0] // 2]),
    "sum of lists": lambda x: torch.tensor([-5] + list(range(x.shape[0])) + [7, x.shape[0]]),  # noqa: RUF005
    "sum of ranges": lambda x: torch.tensor(list(range(x.shape[0])) + list(range(2 * x.shape[0]))),
    "mixed numbers": lambda x: torch.tensor([0.5] + list(range(x.shape[0]))),  # noqa: RUF005
    "zeros": lambda x: x + torch.tensor([0] * x.shape[0]),
    "floats": lambda x: x * torch.tensor([0.1] * x.shape[0], dtype=torch.float64),
    "booleans": lambda x: x.masked_fill(torch.tensor([True] * x.shape[0]), 3),
    "repeated from the left": lambda x: torch.tensor(x.shape[0] * [3]),
    "repeated with others": lambda x: torch.tensor([True] + [False] * (x.shape[0] - 1)),
    "gradient": lambda x: torch.tensor([2.0] * x.shape[0], requires_grad=True),
    "left padding": left_padded,
    "pooled positions": pooled,
    "questions": counted,
    "results": shared,
}


def looped(x: Tensor) -> Tensor:
    for position in list(range(x.shape[0]))[::2]:
        x = x + position
    return x


def changed(x: Tensor) -> Any:
    pos = list(range(x.shape[0]))
    alias = pos
    pos.append(7)
    pos[0] = 5
    pos += [1]
    return torch.tensor(pos), alias, pos, sorted(pos, reverse=True)[0]


def unpacked(x: Tensor) -> Any:
    first, *rest = list(range(x.shape[0]))
    return first, sum(rest), max(*rest), [*rest, 1], {"rest": rest}


BY_LENGTH: dict[str, Program] = {
    "loop": looped,
    "changed": changed,
    "unpacked": unpacked,
    "shape": lambda x: torch.zeros([1] * (x.shape[0] // 8) + [2]),
    "sum": lambda x: sum(list(range(x.shape[0]))),
    "enumerated": lambda x: [(i, v) for i, v in enumerate(range(x.shape[0]))],
    "text": lambda x: f"{list(range(x.shape[0]))}",
    "equal": lambda x: (list(range(x.shape[0])) == [0, 1, 2, 3, 4], (1,) * x.shape[0] != (1, 1)),
    "member": lambda x: 4 in list(range(x.shape[0])),
    "permuted": lambda x: torch.zeros(2, 3, 4).permute(list(range(min(x.shape[0], 3)))[::-1]),
    "index": lambda x: x[list(range(x.shape[0]))[::2]],
    "small integers": lambda x: torch.tensor(list(range(x.shape[0])), dtype=torch.uint8),
    "nested": lambda x: torch.tensor([list(range(x.shape[0]))]),
    "strided sum": lambda x: (list(range(x.shape[0])) + [1, 2, 3])[::2],  # noqa: RUF005
    "list of two": lambda x: [0, 1] * x.shape[0],
    "star": lambda x: torch.stack([x, x]).sum(*[[0, 1]] if range(x.shape[0]) else []),
    "copied": lambda x: list(range(x.shape[0])).copy(),
    "hashed": lambda x: {range(x.shape[0]): 1, (2,) * x.shape[0]: 2},
    "item behind the end": lambda x: list(range(x.shape[0]))[:10][min(x.shape[0], 10) - 1],
}


@pytest.mark.parametrize("name", ONE_PROGRAM)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_a_list_of_symbolic_length_needs_one_program(name: str, cache: Any) -> None:
    program = ONE_PROGRAM[name]
    compiled = thunder.jit(program, cache=cache, executors=("torch",))
    for size in SIZES:
        x = torch.linspace(1, 2, size)
        assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == (1 if cache == "symbolic values" else 2)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_list_whose_items_are_read_is_as_in_eager(name: str) -> None:
    program = BY_LENGTH[name]
    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for size in SIZES:
        x = torch.linspace(1, 2, size)
        assert_same(compiled(x), program(x))


def test_the_reason_for_a_program_for_each_length_is_the_line_that_reads_the_items() -> None:
    compiled = thunder.jit(looped, cache="symbolic values", executors=("torch",))
    for size in (5, 6):
        assert_same(compiled(torch.ones(size)), looped(torch.ones(size)))
    assert thunder.cache_misses(compiled) == 2
    assert "args[0].size(0): required s0 == 5, needed at" in thunder.recompile_reasons(compiled)[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_short_lists_are_as_in_eager(size: int) -> None:
    for name, program in (ONE_PROGRAM | BY_LENGTH).items():
        x = torch.linspace(1, 2, size)
        outcomes = []
        for call in (program, thunder.jit(program, cache="symbolic values", executors=("torch",))):
            try:
                outcomes.append(call(x))
            except (RuntimeError, IndexError, TypeError) as error:
                outcomes.append((type(error), str(error)))
        try:
            assert_same(outcomes[1], outcomes[0])
        except AssertionError as error:
            raise AssertionError(f"{name} of {size}: {outcomes}") from error


def test_same_objects_are_the_same_in_results() -> None:
    compiled = thunder.jit(shared, cache="symbolic values", executors=("torch",))
    for size in (5, 7):
        found = compiled(torch.ones(size))
        assert found["pos"] is found["same"]
        assert found["pos"] is not found["other"]


def test_a_list_that_is_stored_outside_is_stored_for_each_length() -> None:
    class Box:
        numbers: Any = None

    box = Box()

    def program(x: Tensor) -> Tensor:
        box.numbers = list(range(x.shape[0]))[1:]
        return x * 2

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for size in (5, 7, 9):
        compiled(torch.ones(size))
        assert box.numbers == list(range(1, size))
    assert thunder.cache_misses(compiled) == 1


def extended(numbers: list[Any], n: int) -> None:
    numbers += [5]


def extended_by_itself(numbers: list[Any], n: int) -> None:
    numbers += numbers


def extended_by_another(numbers: list[Any], n: int) -> None:
    numbers += [7] * n


def extended_by_a_generator(numbers: list[Any], n: int) -> None:
    numbers += (2 * number for number in range(3))


def repeated(numbers: list[Any], n: int) -> None:
    numbers *= 2


def repeated_by_length(numbers: list[Any], n: int) -> None:
    numbers *= n


@pytest.mark.parametrize(
    "change",
    [
        *(extended, extended_by_itself, extended_by_another, extended_by_a_generator),
        *(repeated, repeated_by_length),
    ],
)
@pytest.mark.parametrize("make", [lambda n: [1] * n, lambda n: [1], lambda n: [1, 2], lambda n: list(range(n))])
def test_list_that_changes_in_place_is_the_same_list(make: Any, change: Any) -> None:
    def program(x: Tensor) -> Any:
        numbers = make(x.shape[0])
        same = numbers
        change(numbers, x.shape[0])
        same.append(4)
        return numbers, same, numbers is same

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for size in (5, 7, 9):
        found, wanted = compiled(torch.ones(size)), program(torch.ones(size))
        assert found == wanted
        assert found[0] is found[1]


def test_list_from_outside_that_is_repeated_stays_the_same_list() -> None:
    numbers = [1]

    def program(x: Tensor) -> Any:
        same = numbers
        same *= x.shape[0]
        return same is numbers, len(numbers)

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for size in (5, 7, 9):
        del numbers[1:]
        assert compiled(torch.ones(size)) == (True, size)
        assert numbers == [1] * size


def test_float_that_is_too_large_for_the_dtype_becomes_infinite() -> None:
    compiled = thunder.jit(lambda x: torch.tensor([1e300] * x.shape[0]), cache="symbolic values")
    for size in (5, 7, 9):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), torch.inf))
