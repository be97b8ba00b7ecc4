"""Tests of functions under `functools.lru_cache`: their values and effects are those of eager PyTorch."""

import functools
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning


@dataclass(frozen=True)
class Size:
    """A key that equals other keys with the same number."""

    number: int


class State:
    """What the cached functions below read and write."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.factor = 2

    def calls_of(self, kind: str) -> Callable[[torch.Tensor], Any]:
        """Return a new program of this kind."""
        return getattr(self, kind)()  # type: ignore[no-any-return]

    def constant(self) -> Callable[[torch.Tensor], Any]:
        @functools.lru_cache
        def cached(number: int) -> int:
            self.seen.append(number)
            return number * self.factor

        return lambda x: x * cached(2) + cached(3)

    def tensor(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(number: int) -> torch.Tensor:
            self.seen.append(number)
            return torch.ones(number) * self.factor

        return lambda x: x * cached(2)

    def written_tensor(self) -> Callable[[torch.Tensor], Any]:
        @functools.lru_cache(maxsize=4)
        def cached(number: int) -> torch.Tensor:
            return torch.ones(number)

        return lambda x: x * cached(2).add_(1)

    def random_tensor(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(number: int) -> torch.Tensor:
            return torch.rand(number)

        return lambda x: torch.rand(2) + x * cached(2)

    def random_number(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached() -> float:
            return random.random()

        return lambda x: x * cached()

    def registry(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached() -> dict[str, int]:
            return {"calls": 0}

        def program(x: torch.Tensor) -> torch.Tensor:
            cached()["calls"] += 1
            return x * cached()["calls"]

        return program

    def recursive(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(number: int) -> int:
            self.seen.append(number)
            return number if number < 2 else cached(number - 1) + cached(number - 2)

        return lambda x: x * cached(6)

    def method(self) -> Callable[[torch.Tensor], Any]:
        class Owner:
            @functools.cache  # noqa: B019
            def cached(owner, number: int) -> torch.Tensor:
                self.seen.append(number)
                return torch.ones(2) * number

        owner = Owner()
        return lambda x: x * owner.cached(2) * owner.cached(3)

    def method_with_a_constant(self) -> Callable[[torch.Tensor], Any]:
        class Owner:
            @functools.cache  # noqa: B019
            def cached(owner, number: int) -> int:
                self.seen.append(number)
                return number * self.factor

        owner = Owner()
        bound = owner.cached
        return lambda x: x * owner.cached(x.shape[0]) * bound(7) + len(sorted([3, 1], key=functools.cmp_to_key(minus)))

    def overwritten_attribute(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(number: int) -> int:
            self.factor = number
            return number

        def program(x: torch.Tensor) -> torch.Tensor:
            self.factor = 1
            result = x * cached(3)
            return result * self.factor

        return program

    def equal_keys(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(size: Size) -> torch.Tensor:
            self.seen.append(size.number)
            return torch.ones(2) * size.number

        return lambda x: x * cached(Size(2))

    def computed_keys(self) -> Callable[[torch.Tensor], Any]:
        @functools.lru_cache(maxsize=2)
        def cached(key: torch.Tensor) -> torch.Tensor:
            self.seen.append(key.shape)
            return key * self.factor

        return lambda x: cached(x + 1) * 2

    def sizes(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(size: int) -> torch.Tensor:
            self.seen.append(size)
            return torch.arange(size) * self.factor

        return lambda x: x + cached(x.shape[0])

    def warning(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached(message: str) -> None:
            self.seen.append(message)
            warnings.warn(message, stacklevel=1)

        return lambda x: (cached("once"), x + 1)[1]

    def order(self) -> Callable[[torch.Tensor], Any]:
        @functools.cache
        def cached() -> int:
            self.seen.append("cached")
            return len(self.seen)

        def program(x: torch.Tensor) -> torch.Tensor:
            self.seen.append("before")
            result = x * cached()
            self.seen.append("after")
            return result

        return program


def minus(left: int, right: int) -> int:
    return left - right


KINDS = [name for name, member in vars(State).items() if name[0] != "_" and name != "calls_of" and callable(member)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_cached_function_is_as_in_eager(kind: str, cache: str) -> None:
    ours, eagers = State(), State()
    program, expected = ours.calls_of(kind), eagers.calls_of(kind)
    compiled = thunder.jit(program, cache=cache)
    sizes = [2, 2, 3, 4, 2, 3] if kind in ("sizes", "method_with_a_constant") else [2] * 4
    for step, size in enumerate(sizes):
        results = []
        for function in (compiled, expected):
            torch.manual_seed(step)
            random.seed(step)
            results.append(function(torch.ones(size)))
        assert torch.equal(*results)
        assert ours.seen == eagers.seen
        ours.factor = eagers.factor = step


def test_value_in_the_cache_is_the_object_of_eager() -> None:
    @functools.cache
    def cached(number: int) -> torch.Tensor:
        return torch.ones(number)

    compiled = thunder.jit(lambda x: (cached(2), x + 1))
    assert all(compiled(torch.ones(2))[0] is cached(2) for _ in range(3))
    assert thunder.cache_misses(compiled) <= 2


def test_cleared_cache_is_noticed() -> None:
    factors = [2]

    @functools.cache
    def cached(number: int) -> int:
        return factors[0] * number

    compiled = thunder.jit(lambda x: x * cached(1))
    x = torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    factors[0] = 3
    assert compiled(x).tolist() == [2, 2]
    cached.cache_clear()
    assert compiled(x).tolist() == [3, 3]
    assert compiled(x).tolist() == [3, 3]


REFILLED: dict[str, Callable[[int], Any]] = {
    "constant": lambda factor: factor,
    "tensor": lambda factor: torch.ones(2) * factor,
    "object": lambda factor: Size(factor),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", REFILLED.values(), ids=REFILLED)
@pytest.mark.parametrize("is_filled_before", [False, True])
@pytest.mark.parametrize("maxsize", [None, 2])
def test_cache_that_is_cleared_and_filled_again_is_noticed(
    make: Callable[[int], Any], is_filled_before: bool, maxsize: int | None
) -> None:
    """The number of computed values is the same; each call reads the value as in eager."""
    factors, owner = [2], State()

    @functools.lru_cache(maxsize=maxsize)
    def cached(owner: State, number: int, *, scale: int = 1) -> Any:
        return make(factors[0] * number * scale)

    def program(x: torch.Tensor) -> torch.Tensor:
        value = cached(owner, 1, scale=x.shape[0])
        return x * (value.number if isinstance(value, Size) else value)

    compiled = thunder.jit(program)
    x = torch.ones(2)
    for factor in (2, 3, 4, 2):
        factors[0] = factor
        cached.cache_clear()
        if is_filled_before or factor == 3:
            cached(owner, 1, scale=2)
        for _ in range(3):
            assert torch.equal(compiled(x), program(x))
    assert thunder.cache_hits(compiled) >= 4


def test_one_value_is_found_with_several_keys() -> None:
    """The program makes some keys itself, and uses the values as keys, by their identity."""
    values = [State(), State()]

    @functools.cache
    def cached(key: Any) -> State:
        return values[0 if key == Size(1) or key == ("first", 1) else 1]

    def program(x: torch.Tensor) -> torch.Tensor:
        found = {cached(Size(1)), cached(("first", 1)), cached(("second",)), cached(Size(2))}
        return x * len(found) + cached(("first", 1)).factor

    compiled = thunder.jit(program)
    for factor in (2, 2, 3):
        values[0].factor = factor
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert thunder.cache_hits(compiled) >= 4


def test_constant_without_effects_is_computed_while_tracing() -> None:
    @functools.cache
    def cached(number: int) -> int:
        return number

    compiled = thunder.jit(lambda x: x * cached(3))
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert (thunder.cache_misses(compiled), cached.cache_info().misses) == (1, 1)


@pytest.mark.parametrize("reads_first", [False, True])
def test_program_that_reads_the_statistics_of_a_cache_that_it_uses_runs_in_eager(reads_first: bool) -> None:
    @functools.cache
    def cached(number: int) -> int:
        return number

    def program(x: torch.Tensor, number: int) -> Any:
        before = cached.cache_info() if reads_first else None
        product = x * cached(number)
        return product, cached.cache_info().hits > 0 if before is None else before.currsize

    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match="cache_info"):
        results = [compiled(torch.ones(1), number) for number in (3, 3, 4)]
    cached.cache_clear()
    assert results[1:] == [program(torch.ones(1), number) for number in (3, 3, 4)][1:]
    with pytest.raises(CannotReplay, match="cache_info"):
        thunder.jit(program, data_dependent="error")(torch.ones(1), 3)


def test_statistics_of_a_cache_that_the_program_does_not_use_are_guarded() -> None:
    @functools.cache
    def cached(number: int) -> int:
        return number

    compiled = thunder.jit(lambda x: x * cached.cache_info().currsize)
    for size in range(3):
        assert compiled(torch.ones(1)).item() == size
        cached(size)
    assert compiled(torch.ones(1)).item() == 3


def test_cache_that_drops_its_values_is_no_reason_to_stay_in_eager() -> None:
    @functools.lru_cache(maxsize=1)
    def ones(length: int) -> torch.Tensor:
        return torch.ones(length)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[:1] * ones(1)).sum() + x * ones(x.shape[0])

    compiled = thunder.jit(program)
    for _ in range(5):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), x[0] + x)
    assert thunder.cache_hits(compiled) >= 2


def test_effects_of_a_cache_that_drops_its_values_are_eagers() -> None:
    calls = []

    @functools.lru_cache(maxsize=1)
    def ones(length: int) -> torch.Tensor:
        calls.append(length)
        return torch.ones(length)

    compiled = thunder.jit(lambda x, lengths: sum(x * ones(length).sum() for length in lengths))
    for lengths, added in (((1, 2), 2), ((1, 2), 2), ((1, 2), 2), ((2,), 0), ((2, 2), 0), ((1,), 1)):
        before = len(calls)
        compiled(torch.ones(2), lengths)
        assert len(calls) - before == added


def test_other_values_of_a_cache_do_not_matter_for_a_computed_key() -> None:
    """No later call can find a value whose key is a tensor that the program computes."""

    @functools.lru_cache(maxsize=4)
    def cached(mask: torch.Tensor) -> torch.Tensor:
        return mask.cumsum(0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * cached(x > 0)

    compiled = thunder.jit(program)
    for step in range(4):
        x = torch.randn(3, generator=torch.Generator().manual_seed(step))
        torch.testing.assert_close(compiled(x), program(x))  # the second call adds a value to the cache
    assert thunder.cache_misses(compiled) == 1


def test_a_value_that_an_overflowing_cache_happens_to_contain_is_computed_too() -> None:
    """Eager calls in between change what the cache contains, but no value of the program."""

    @functools.lru_cache(maxsize=1)
    def ones(length: int) -> torch.Tensor:
        return torch.ones(length)

    def program(x: torch.Tensor) -> torch.Tensor:
        return sum((x[:length] * ones(length)).sum() for length in (1, 2, 3)) + x

    compiled = thunder.jit(program)
    for step in range(6):
        x = torch.randn(3, generator=torch.Generator().manual_seed(step))
        expected = program(x)
        torch.testing.assert_close(compiled(x), expected)
    assert thunder.cache_misses(compiled) <= 2
