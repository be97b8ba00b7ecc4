"""Numbers from every source are inputs of the program, and decisions on them are constraints of its prologue."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program

SCALE = 1.5


def needs(compiled: Any) -> list[str]:
    """Return the constraints of the last program as text, without the lines that needed them."""
    return [str(constraint).partition(", needed")[0] for constraint in last_program(compiled).constraints]


def test_flag_has_one_program_for_each_side_of_its_branch() -> None:
    def chosen(x: torch.Tensor, flag: int) -> torch.Tensor:
        return x + (torch.ones(1) if flag > 5 else torch.zeros(1))

    compiled = thunder.jit(chosen, cache="symbolic values")
    x = torch.zeros(3)
    for flag in (6, 0, 7, 3, 100, -2):
        assert torch.equal(compiled(x, flag), chosen(x, flag))
    assert thunder.cache_misses(compiled) == 2
    assert needs(compiled) == ["args[1]: required s0 <= 5", "args[0].size(0): required 1 <= s1"]


def test_sizes_of_slices_are_symbolic() -> None:
    def parted(a: torch.Tensor, one: int, other: int, more: int) -> tuple[torch.Tensor, int]:
        x = torch.split(a, (one, other, a.size(2) - one - other), dim=2)
        return x[0] * (x[2].size(2) + more), x[2].size(2) + more

    compiled = thunder.jit(parted, cache="symbolic values")
    for first, second, size in ((2, 3, 10), (2, 4, 12), (3, 5, 20), (1, 1, 9)):
        a = torch.randn(2, 3, size)
        expected, found = parted(a, first, second, 4), compiled(a, first, second, 4)
        assert torch.equal(expected[0], found[0])
        assert expected[1] == found[1] and type(found[1]) is int
    assert thunder.cache_misses(compiled) == 1
    with pytest.raises(RuntimeError, match="split_with_sizes expects"):
        compiled(torch.randn(2, 3, 4), 3, 5, 4)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_an_argument_that_changes_is_an_input_from_its_second_value_on(cache: Any) -> None:
    compiled = thunder.jit(lambda x, rate: x * rate, cache=cache)
    x = torch.ones(3)
    for rate in (0.5, 0.25, 0.125, 0.7, 0.1):
        assert torch.equal(compiled(x, rate), x * rate)
        assert torch.equal(compiled(x, rate=rate), x * rate)
    assert thunder.cache_misses(compiled) <= 4  # two for each way of passing it


def test_numbers_by_keyword_item_and_attribute() -> None:
    def scaled(x: torch.Tensor, options: dict[str, Any], *, shift: int = 1) -> torch.Tensor:
        return x * options["scale"] + shift

    compiled = thunder.jit(scaled, cache="symbolic values")
    x = torch.ones(2)
    for scale, shift in ((0.5, 1), (0.25, 2), (0.3, 7), (0.9, -1)):
        assert torch.equal(compiled(x, {"scale": scale}, shift=shift), scaled(x, {"scale": scale}, shift=shift))
    assert thunder.cache_misses(compiled) == 1


def test_numbers_of_outside_objects_are_inputs_from_their_second_value_on() -> None:
    settings = SimpleNamespace(scale=0.5, step=3)
    compiled = thunder.jit(lambda x: x * settings.scale + settings.step, cache="symbolic values")
    for scale, step in ((0.5, 3), (0.25, 4), (0.125, 9), (0.7, 11)):
        settings.scale, settings.step = scale, step
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * scale + step)
    assert thunder.cache_misses(compiled) <= 3


def test_constraints_are_merged_and_say_who_needed_them() -> None:
    def bounded(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if n < 2 or n > 100 or n == 50:
            return x - 1
        return x.view(n // 2, 2) if n % 2 == 0 else x

    compiled = thunder.jit(bounded, cache="symbolic values")
    compiled(torch.ones(10))
    texts = [str(constraint) for constraint in last_program(compiled).constraints]
    assert [text.partition(", needed")[0] for text in texts][:3] == [
        "args[0].size(0): required 2 <= s0 <= 100",
        "args[0].size(0): required s0 != 50",
        "args[0].size(0): required (s0 % 2) == 0",
    ]
    assert all("test_numbers.py" in text for text in texts)
    for size in (12, 50, 101, 1, 3, 7, 99, 100):
        x = torch.randn(size)
        assert torch.equal(compiled(x), bounded(x))
    refused = thunder.recompile_reasons(compiled)
    assert any(
        reason.startswith("args[0].size(0): required 2 <= s0 <= 100") and reason.endswith("is 101")
        for reason in refused
    )


def test_division_by_a_number_of_zero_raises_as_in_eager() -> None:
    compiled = thunder.jit(lambda x, n: x + 10 // n, cache="symbolic values")
    assert torch.equal(compiled(torch.ones(2), 3), torch.ones(2) + 3)
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(2), 0)
    assert torch.equal(compiled(torch.ones(2), 5), torch.ones(2) + 2)


def test_prologue_is_readable_python() -> None:
    compiled = thunder.jit(lambda x, n: x.view(-1, n) if x.shape[0] > 4 else x, cache="symbolic values")
    compiled(torch.ones(6), 3)
    prologue = str(thunder.last_prologue_traces(compiled)[-1])
    assert "s0 = args[1]" in prologue
    assert "s1 = x.size(0)" in prologue
    assert "if not (5 <= s1): refuse(" in prologue
    assert "if not ((s1 % s0) == 0): refuse(" in prologue
    assert "x.view(-1, s0)" in str(thunder.last_traces(compiled)[-1])


def test_quotient_that_simplifies_to_a_constant_raises_as_in_eager() -> None:
    compiled = thunder.jit(lambda x, n: x + n // n + divmod(n, n)[1], cache="symbolic values")
    for number in (3, 4):
        assert torch.equal(compiled(torch.ones(2), number), torch.ones(2) + 1)
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(2), 0)
    assert thunder.cache_misses(compiled) == 2


class Scaled:
    scale = 2.0

    def __call__(self, x: torch.Tensor, number: float) -> torch.Tensor:
        return x * number * self.scale


class Kind(type):
    pass


class Made(metaclass=Kind):
    def __init__(self, number: float) -> None:
        self.number = number * Scaled.scale


SCALED = Scaled()
CALLING: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "an object": lambda x, number: SCALED(x, number),
    "a partial function": lambda x, number: functools.partial(SCALED, x)(number),
    "a class with a metaclass": lambda x, number: x * Made(number).number,
}


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", CALLING)
def test_reads_of_an_object_that_is_called_with_a_number_are_guarded(
    name: str, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = CALLING[name]
    compiled = thunder.jit(function, cache=cache)
    x = torch.ones(2)
    for number in (0.5, 0.25, 0.7, 0.9):
        assert torch.equal(compiled(x, number), function(x, number))
    assert thunder.cache_misses(compiled) <= 3
    monkeypatch.setattr(Scaled, "scale", 5.0)
    assert torch.equal(compiled(x, 0.25), function(x, 0.25))


def test_a_module_that_is_called_with_a_size_serves_all() -> None:
    class Shifts(torch.nn.Module):
        def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
            return x + number

    shifts = Shifts()
    compiled = thunder.jit(lambda x: shifts(x, x.shape[0]), cache="symbolic values")
    for length in (3, 4, 7):
        assert torch.equal(compiled(torch.ones(length)), torch.ones(length) + length)
    assert thunder.cache_misses(compiled) == 1


def test_comparison_of_a_size_of_one_with_a_float_is_decided_by_that_size() -> None:
    """The trace decides with a size other than one; a comparison with a fraction then has another outcome."""

    def compared(x: torch.Tensor, limit: float) -> torch.Tensor:
        return x + 1 if x.shape[0] < limit else x

    compiled = thunder.jit(compared, cache="symbolic values")
    for length in (1, 3, 5):
        assert torch.equal(compiled(torch.ones(length), 3.25), compared(torch.ones(length), 3.25))


def test_a_size_that_is_rounded_is_computed_by_the_prologue() -> None:
    def counted(x: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Size]:
        places = torch.arange(0.5, end)
        return places, places.new_ones(places.shape[0] + 1).shape

    compiled = thunder.jit(counted, cache="symbolic values")
    for end in (3, 4, 9):
        expected, found = counted(torch.ones(2), end), compiled(torch.ones(2), end)
        assert torch.equal(expected[0], found[0]) and expected[1] == found[1]


@pytest.mark.parametrize("cache", ["symbolic values", "constant values"])
def test_quotients_of_quotients_by_negative_numbers_match_eager(cache: str) -> None:
    def program(x: Tensor, n: int, m: int) -> tuple[Tensor, Any]:
        return x * 1, (n // -2 // -2, n // 3 // -2, n // -3 // 2, n // 2 // m, -n // m // -2, n % -3, divmod(n, -4))

    compiled = thunder.jit(program, cache=cache)
    for n, m in ((3, 2), (5, -3), (-7, 4), (8, -1), (2, -2), (1, -1), (12, 5)):
        assert compiled(torch.ones(2), n, m)[1] == program(torch.ones(2), n, m)[1], (n, m)


LEGACY: dict[str, Callable[..., Tensor]] = {
    "list": lambda x, counts: torch.LongTensor([counts[0].item(), x.shape[0]]),
    "floats": lambda x, counts: torch.Tensor([counts[0].item() * 2.5, 1]),
    "nested": lambda x, counts: torch.FloatTensor([[x.shape[0]], [counts[1].item()]]),
    "shape": lambda x, counts: torch.DoubleTensor(counts[0].item(), 2).zero_(),
    "torch.Size": lambda x, counts: torch.IntTensor(x.new_empty(counts[1].item(), 3).shape).zero_(),
}

A_PROGRAM_FOR_EACH_VALUE = ("nested", "torch.Size")


@pytest.mark.filterwarnings("error::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("name", LEGACY)
def test_legacy_constructors_take_numbers_out_of_tensors(name: str) -> None:
    compiled, x = thunder.jit(LEGACY[name]), torch.ones(3)
    for counts in (torch.tensor([3, 2]), torch.tensor([2, 1]), torch.tensor([5, 4])):
        expected, found = LEGACY[name](x, counts), compiled(x, counts)
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
    assert thunder.cache_misses(compiled) <= (3 if name in A_PROGRAM_FOR_EACH_VALUE else 2)
