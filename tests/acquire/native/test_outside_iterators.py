"""Items of an iterator from outside do not become constants: eager PyTorch makes such calls."""

import functools
import inspect
import itertools
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.errors import CannotReplay, RecompileWarning


def generate() -> Iterator[int]:
    """Yield numbers, and add what is sent to the next number."""
    number = 1
    while number < 100:
        number += (yield number) or 1


ITERATORS: dict[str, Callable[[], Any]] = {
    "a list": lambda: iter([1, 2, 3]),
    "a tuple": lambda: iter((1, 2, 3)),
    "a range": lambda: iter(range(1, 9)),
    "a dict": lambda: iter({1: 2, 3: 4}),
    "an ordered dict": lambda: iter(OrderedDict({1: 2, 3: 4})),
    "a deque": lambda: iter(deque([1, 2, 3])),
    "a set": lambda: iter({1, 2, 3}),
    "a generator": generate,
    "a generator expression": lambda: (number for number in range(1, 9)),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "enumerate": lambda: enumerate("abc", 1),
    "zip": lambda: zip([1, 2, 3], [4, 5, 6], strict=True),
    "map": lambda: map(abs, [1, 2, 3]),
    "matches": lambda: re.finditer("a", "aaa"),
    "calls of a function": lambda: iter([1, 2, 3].pop, 0),
}
USES: dict[str, Callable[[Any], Any]] = {
    "next": lambda numbers: next(numbers),
    "next with a default": lambda numbers: next(numbers, 5),
    "the method": lambda numbers: numbers.__next__(),
    "a loop": lambda numbers: [number for number in numbers],  # noqa: C416
    "list": lambda numbers: list(numbers),
    "unpacking": lambda numbers: [*numbers],
    "starred arguments": lambda numbers: max(*numbers),
    "in": lambda numbers: 2 in numbers,
    "islice": lambda numbers: list(itertools.islice(numbers, 1)),
    "another iterator": lambda numbers: next(enumerate(numbers)),
    "extend": lambda numbers: [].extend(numbers),
    "reduce": lambda numbers: functools.reduce(max, numbers),
    "yield from": lambda numbers: next(delegate(numbers)),
    "send": lambda numbers: numbers.send(None),
    "close": lambda numbers: numbers.close(),
}


def delegate(numbers: Any) -> Iterator[Any]:
    """Yield the items of an iterator."""
    yield from numbers


def first_of(x: torch.Tensor, numbers: Any) -> torch.Tensor:
    """Multiply by the number of the next item of an iterator."""
    item = next(numbers)
    item = item[0] if type(item) is tuple else item
    return x * (item if type(item) is int else item.start() + 1)


@pytest.mark.parametrize("name", ITERATORS)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_item_of_outside_iterator_is_refused_and_stays(name: str, cache: str) -> None:
    numbers, again = ITERATORS[name](), ITERATORS[name]()
    with pytest.raises(CannotReplay, match="takes an item out of an iterator from outside"):
        thunder.jit(first_of, cache=cache, data_dependent="error")(torch.ones(2), numbers)
    assert torch.equal(first_of(torch.ones(2), numbers), first_of(torch.ones(2), again))


@pytest.mark.parametrize("name", USES)
def test_use_of_outside_generator_is_refused(name: str) -> None:
    numbers = generate()
    with pytest.raises(CannotReplay, match=r"an iterator from outside, args\[1\]"):
        thunder.jit(lambda x, numbers: (USES[name](numbers), x + 1), data_dependent="error")(torch.ones(2), numbers)
    assert next(numbers) == 1


def test_iterator_in_an_attribute() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = itertools.count(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * next(self.numbers)

    with pytest.raises(CannotReplay, match=r"module\.numbers"):
        thunder.jit(Counting(), data_dependent="error")(torch.ones(2))
    compiled = thunder.jit(Counting())
    with pytest.warns(RecompileWarning, match=r"module\.numbers"):
        assert compiled(torch.ones(1)).item() == 1
    assert [compiled(torch.ones(1)).item() for _ in range(4)] == [2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("name", ITERATORS)
def test_eager_takes_items_of_an_outside_iterator(name: str) -> None:
    numbers, expected = ITERATORS[name](), ITERATORS[name]()
    compiled = thunder.jit(first_of)
    for size in (2, 3):
        assert torch.equal(compiled(torch.ones(size), numbers), first_of(torch.ones(size), expected))


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("name", ["next", "next with a default", "the method", "in", "islice", "send"])
def test_eager_uses_an_outside_generator(name: str) -> None:
    numbers, expected = generate(), generate()
    compiled = thunder.jit(lambda x, numbers: (USES[name](numbers), x + 1))
    for size in (2, 3):
        assert compiled(torch.ones(size), numbers)[0] == USES[name](expected)
    assert next(numbers, None) == next(expected, None)


def test_outside_iterator_that_is_not_advanced_is_accepted() -> None:
    numbers = generate()

    def program(x: torch.Tensor, numbers: Any) -> Any:
        is_known = numbers is not None and bool(numbers) and iter(numbers) is numbers and hasattr(numbers, "send")
        return x * (2 if is_known and inspect.isgenerator(numbers) else 3), [numbers]

    compiled = thunder.jit(program)
    for _ in range(2):
        result, held = compiled(torch.ones(2), numbers)
        assert result.tolist() == [2, 2]
        assert held[0] is numbers


def test_iterators_that_the_program_makes_are_advanced() -> None:
    def program(x: torch.Tensor, numbers: list[int]) -> Any:
        made = iter(numbers)
        return x * next(made) + sum(made) + next(delegate(generate()))

    compiled = thunder.jit(program)
    for numbers in ([1, 2, 3], [4, 5, 6]):
        assert torch.equal(compiled(torch.ones(2), numbers), program(torch.ones(2), numbers))
