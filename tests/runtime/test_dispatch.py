"""Many programs of one function: the matching program is found by the values that distinguish the calls."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.runtime.dispatch import Route
from thunder_core.backend.runtime.keys import key_of
from thunder_core.backend.runtime.selector import NOWHERE, Selector, key_function
from thunder_core.compilation.compiler import specializations_of

LEVEL = 0


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The refusals of programs, in the order of the checks."""
    found: list[str] = []
    after = Route.after

    def noted(self: Route, program: Any, error: Exception) -> Any:
        found.append(str(error))
        return after(self, program, error)

    monkeypatch.setattr(Route, "after", noted)
    yield found


class Config:
    """An object that the program reads."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Other(Config):
    """Another object that the program reads."""


def by_number(x: Tensor, number: int) -> Tensor:
    return x.sum() + torch.zeros(int(f"{number}"))


def by_shape(x: Tensor) -> Tensor:
    return x * 2 + x.shape[0]


def by_keys(x: Tensor, **values: float) -> Tensor:
    return x * sum(values.values())


def by_config(x: Tensor, config: Config) -> Tensor:
    return x * 2 if type(config) is Other else x * getattr(config, "scale", 3.0)


def by_function(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(x)


def by_both(x: Tensor, number: int, mode: str) -> Tensor:
    return x.repeat(number) + len(mode)


def by_value(x: Tensor) -> Tensor:
    return torch.ones(int(x.sum()) % 5 + 1)


def by_global(x: Tensor) -> Tensor:
    return x.new_zeros(LEVEL + 1)


CASES: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    by_number: [(torch.ones(2), number) for number in range(20)],
    by_shape: [(torch.ones(size, dtype=kind),) for size in range(1, 9) for kind in (torch.float32, torch.int64)],
    by_config: [(torch.ones(2), Config()), (torch.ones(2), Other()), *((torch.ones(2), Config(scale=s)) for s in "ab")],
    by_function: [(torch.ones(2), function) for function in (torch.sin, torch.cos, torch.exp, abs, lambda x: x + 1)],
    by_both: [(torch.ones(size), number, mode) for size in (1, 2, 3) for number in (1, 2, 3) for mode in ("a", "bcd")],
    by_value: [(torch.full((1,), float(value)),) for value in range(5)],
}
CASES[by_config] = CASES[by_config][:2] + [(torch.ones(2), Config(scale=scale)) for scale in (4.0, 5.0)]


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_each_call_equals_eager_and_finds_its_program(function: Callable[..., Any], refused: list[str]) -> None:
    compiled = thunder.jit(function)
    calls = CASES[function]
    shuffled = random.Random(0)
    for _ in range(3):
        for arguments in (*calls, *shuffled.sample(calls, len(calls))):
            torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) <= len(calls) + 1
    misses = thunder.cache_misses(compiled)
    refused.clear()
    for arguments in calls:
        compiled(*arguments)
    asked_for = 3 * len(calls) if function is by_value else 0
    assert len(refused) <= asked_for, "what lies where programs differ leads to the one that takes the call"
    assert thunder.cache_misses(compiled) == misses


def test_sixty_programs_are_dispatched_without_refused_guards(refused: list[str]) -> None:
    compiled = thunder.jit(by_number)
    x = torch.ones(2)
    for number in (*range(60), *range(60)):
        compiled(x, number)
    refused.clear()
    for number in range(60):
        assert compiled(x, number).shape == (number,)
        assert compiled(x, number).shape == (number,)  # the program that was used last
    assert not refused


def test_programs_that_differ_in_strides_are_dispatched_without_refused_guards(refused: list[str]) -> None:
    """The programs share a key until a second program accepts calls of the key."""
    fast = thunder.jit(lambda x: x * 2)
    calls = [torch.empty_strided((2, 3), (row, 1)).fill_(row) for row in range(3, 23)]
    for x in (*calls, *calls):
        fast(x)
    assert thunder.cache_misses(fast) == 20
    refused.clear()
    for x in random.Random(0).choices(calls, k=100):
        torch.testing.assert_close(fast(x), x * 2, rtol=0, atol=0)
    assert not refused


def test_calls_are_distinguished_by_keywords_and_globals(refused: list[str]) -> None:
    global LEVEL
    keywords, levels = thunder.jit(by_keys), thunder.jit(by_global)
    x = torch.ones(1)
    named = [dict.fromkeys("abcdefgh"[:count], 1.0) for count in range(1, 8)]
    for _ in range(3):
        refused.clear()
        for values in named:
            assert keywords(x, **values).item() == len(values)
        for level in range(6):
            LEVEL = level
            assert levels(x).shape == (level + 1,)
    assert not refused
    LEVEL = 0


def test_reasons_of_all_programs_begin_with_the_last_used() -> None:
    compiled = thunder.jit(by_number)
    x = torch.ones(2)
    for number in (1, 2, 3, 1, 2):
        compiled(x, number)
    before = len(thunder.recompile_reasons(compiled))
    compiled(x, 9)
    reasons = thunder.recompile_reasons(compiled)[before:]
    lines = [reason.partition(", needed")[0] for reason in reasons]
    assert lines == ["args[1]: required s0 == 2", "args[1]: was 1, is 9", "args[1]: required s0 == 3"]


def test_path_that_raises_selects_no_program() -> None:
    class Moody:
        mood: Any = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "mood" and object.__getattribute__(self, "mood") == "bad":
                raise RuntimeError("not now")
            return object.__getattribute__(self, name)

    def program(x: Tensor, moody: Moody, number: int) -> Tensor:
        return x.repeat(number) if number > 3 else x.repeat(moody.mood)

    compiled, moody, x = thunder.jit(program), Moody(), torch.ones(1)
    for mood, number in itertools.product((1, 2), range(5)):
        moody.mood = mood
        assert compiled(x, moody, number).shape == ((number if number > 3 else mood),)
    moody.mood = "bad"
    assert compiled(x, moody, 4).shape == (4,)
    with pytest.raises(RuntimeError, match="not now"):
        compiled(x, moody, 1)


def test_a_wrong_guess_is_refused_and_other_programs_are_checked() -> None:
    flags = Config(a=0, b=0)

    def program(x: Tensor, config: Config) -> Tensor:
        return x.repeat(config.a + 1) if config.a != 2 else x.repeat(config.b + 3)

    compiled = thunder.jit(program)
    order = random.Random(1)
    for _ in range(100):
        flags.a, flags.b = order.randrange(4), order.randrange(4)
        assert torch.equal(compiled(torch.ones(1), flags), program(torch.ones(1), flags))
    assert thunder.cache_misses(compiled) <= 16


def test_programs_that_are_dropped_are_freed() -> None:
    compiled = thunder.jit(by_number, max_programs=3)
    x = torch.ones(2)
    for number in (0, 1, 2, 0, 1, 2):
        compiled(x, number)
    kept = [weakref.ref(program) for program in specializations_of(compiled).programs]
    for number in (5, 6, 7, 8):
        compiled(x, number)
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3
    assert compiled(x, 0).shape == (0,)


def test_keys_run_no_code_of_the_users() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def __hash__(self) -> int:
            raise AssertionError("asked")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("asked")

        def __len__(self) -> int:
            raise AssertionError("asked")

    class LoudTensor(Tensor):
        @classmethod
        def __torch_function__(cls, *arguments: Any, **keywords: Any) -> Any:
            raise AssertionError("asked")

    for value in (Loud(), {Loud: 1}, LoudTensor([1.0]), [Loud()]):
        hash(key_of(value))
    assert key_of(1) != key_of(1.0) != key_of(True) and key_of(0.0) != key_of(-0.0)
    assert key_of(float("nan")) == key_of(float("nan"))
    assert key_of(torch.ones(2)) == key_of(torch.zeros(2)) != key_of(torch.ones(2, requires_grad=True))


class Silent:
    """An object whose only permitted access is reading its stored attributes."""

    def __init__(self, level: Any) -> None:
        vars(self).update(level=level)

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__" and type(self) is not Silent:
            raise AssertionError("asked")
        return object.__getattribute__(self, name)


class Asked(Silent):
    """An object that refuses even to list its stored attributes."""

    def __init__(self, level: Any) -> None:
        object.__getattribute__(self, "__dict__")["level"] = level


class OwnList(list):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("asked")


def test_a_selector_looks_at_places_without_code_of_the_users() -> None:
    args, level = ("root", "args"), ("entry", "level")
    key = key_function(
        ((args, ("item", 0), level), (args, ("item", 1), ("item", 0)), (("root", "kwargs"), ("item", "k")))
    )
    assert key(None, (Asked(3), [True]), {"k": 1.0}) == (key_of(3), key_of(True), key_of(1.0))
    assert key(None, (Silent("a"), OwnList([1])), {}) == (key_of("a"), key_of(NOWHERE), NOWHERE)
    assert key(None, (), {}) == (NOWHERE,) * 3
    of_function = key_function(((("root", "function"), ("entry", "level")),))
    by_number.level = 4  # type: ignore[attr-defined]
    assert of_function(by_number, (), {}) == key_of(4)
    of_module = key_function(((("globals", __name__), ("item", "LEVEL")),))
    assert of_module(None, (), {}) == key_of(LEVEL)
    assert key_function(((("globals", "gone"), ("item", "LEVEL")),))(None, (), {}) is NOWHERE


def test_a_selector_learns_a_few_places_and_keeps_to_the_programs_that_are_kept() -> None:
    selector, programs = Selector(), [object() for _ in range(3)]
    places: list[Any] = [(("root", "args"), ("item", index)) for index in range(6)]
    assert selector.choose(None, (1,), {}, programs[0]) is programs[0]  # type: ignore[arg-type]
    for number, program in enumerate(programs):
        selector.learn(program, [places[number]], None, tuple(range(number, 6 + number)), {})  # type: ignore[arg-type]
    selector.learn(programs[0], places, None, (0,) * 6, {})  # type: ignore[arg-type]
    assert selector.choose(None, (0, 0, 0, 0, 5, 5), {}, None) is programs[0]
    assert selector.choose(None, (0, 0, 0, 5, 0, 0), {}, None) is None
    selector.discard(programs[0])  # type: ignore[arg-type]
    assert selector.choose(None, (0,) * 6, {}, None) is None
