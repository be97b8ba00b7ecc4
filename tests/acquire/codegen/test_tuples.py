"""A tuple of literals that a program reads as a whole has one guard: by identity, or by classes and values."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program
from thunder_core.tracing.library.objects import same_values

NAN = float("nan")


def text_of_parts(x: Tensor, values: tuple[Any, ...]) -> tuple[Tensor, str]:
    first, second = values
    return x + 1, f"{first!r} {second!r}"


@pytest.mark.parametrize("values", [(0j, complex(0.0, -0.0)), (slice(1, None), slice(True, None))])
def test_constants_that_differ_only_in_a_part_have_the_results_of_eager(values: tuple[Any, Any]) -> None:
    compiled = thunder.jit(lambda x, value: (x + 1, repr(value)))
    for value in (*values, *values):
        assert compiled(torch.ones(2), value)[1] == repr(value)


def guards_on(compiled: Any, path: str) -> list[str]:
    return [str(guard) for guard in last_program(compiled).guards if guard.path.startswith(path)]


# Pairs of tuples that are equal, or have equal items, but differ for the program.
DIFFERENT: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "int and bool": ((1, 2), (True, 2)),
    "int and float": ((1, 2), (1.0, 2)),
    "bool and float": ((False, 2), (0.0, 2)),
    "signed zeros": ((0.0, 2), (-0.0, 2)),
    "nan and number": ((NAN, 2), (1.0, 2)),
    "complex signed zeros": ((0j, 2), (complex(0.0, -0.0), 2)),
    "None and False": ((None, 2), (False, 2)),
    "text and bytes": (("a", 2), (b"a", 2)),
    "inner int and bool": (((1, "a"), 2), ((True, "a"), 2)),
    "inner signed zeros": (((0.0,), 2), ((-0.0,), 2)),
    "inner length": (((1,), 2), ((1, 1), 2)),
    "value": ((1, 2), (1, 3)),
}


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("swapped", [False, True])
def test_tuples_that_differ_have_the_results_of_eager(case: str, swapped: bool) -> None:
    tuples = DIFFERENT[case][:: -1 if swapped else 1]
    compiled = thunder.jit(text_of_parts)
    x = torch.ones(2)
    for values in (*tuples, *tuples):
        assert compiled(x, values)[1] == text_of_parts(x, values)[1]


@pytest.mark.parametrize(
    "make", [lambda: (int("300"), 2), lambda: (float("nan"), 2), lambda: ((1, "a" * int("3")), None)]
)
def test_an_equal_tuple_is_accepted(make: Callable[[], tuple[Any, ...]]) -> None:
    compiled = thunder.jit(text_of_parts)
    assert make() is not make()
    for _ in range(3):
        compiled(torch.ones(2), make())
    assert thunder.cache_misses(compiled) == 1


class Subclass(tuple[Any, ...]):
    __slots__ = ()


def test_a_tuple_of_another_class_is_traced_again() -> None:
    def program(x: Tensor, values: tuple[int, int]) -> tuple[Tensor, str]:
        first, second = values
        return x + first + second, type(values).__name__

    compiled = thunder.jit(program)
    assert compiled(torch.ones(2), (1, 2))[1] == "tuple"
    assert compiled(torch.ones(2), Subclass((1, 2)))[1] == "Subclass"


def test_a_whole_tuple_has_one_guard() -> None:
    compiled = thunder.jit(text_of_parts)
    compiled(torch.ones(2), (1, ("a", None, 2.5)))
    assert guards_on(compiled, "args[1]") == ["args[1]: was (1, ('a', None, 2.5))"]


def test_a_tuple_that_is_read_in_part_is_guarded_in_part() -> None:
    def program(x: Tensor, values: tuple[int, ...]) -> Tensor:
        return x + len(str(values[1]))

    compiled = thunder.jit(program)
    for values in ((1, 22), (5, 22), (1, 22, 7)):
        assert torch.equal(compiled(torch.ones(2), values), torch.ones(2) + 2)
    assert thunder.cache_misses(compiled) == 1
    assert torch.equal(compiled(torch.ones(2), (1, 333)), torch.ones(2) + 3)


def test_a_tuple_whose_length_is_not_read_keeps_its_guards() -> None:
    def program(x: Tensor, values: tuple[str, ...]) -> Tensor:
        return x + len(values[0] + values[1])

    compiled = thunder.jit(program)
    compiled(torch.ones(2), ("a", "b"))
    compiled(torch.ones(2), ("a", "b", "c"))
    assert thunder.cache_misses(compiled) == 1


def test_a_changed_tuple_of_a_module_is_explained() -> None:
    model = nn.Conv2d(2, 2, 3)
    compiled = thunder.jit(model)
    x = torch.ones(1, 2, 8, 8)
    compiled(x)
    model.stride = (2, 2)
    assert torch.equal(compiled(x), model(x))
    assert thunder.recompile_reasons(compiled) == ["module.stride: was (1, 1), is (2, 2)"]


def test_a_tuple_is_explained_by_its_items_and_a_list_by_its_kind() -> None:
    box = SimpleNamespace(names=("a", "b"))
    compiled = thunder.jit(lambda x, box: x * len("".join(box.names)))
    reasons = []
    for names in (("a", "b"), ["a", "b"], ("a", "c")):
        box.names = names
        assert compiled(torch.ones(1), box).tolist() == [2]
        reasons += thunder.recompile_reasons(compiled)
    assert any(reason.endswith(", is a list of 2 items") for reason in reasons)
    assert any(reason.endswith("names: was ('a', 'b'), is ('a', 'c')") for reason in reasons)


def test_numbers_of_a_changed_tuple_become_symbolic() -> None:
    def program(x: Tensor, sizes: tuple[int, int]) -> Tensor:
        rows, columns = sizes
        return x.reshape(rows, columns) * rows

    compiled = thunder.jit(program)
    for sizes in ((2, 12), (3, 8), (4, 6), (6, 4)):
        assert torch.equal(compiled(torch.ones(24), sizes), program(torch.ones(24), sizes))
    assert thunder.cache_misses(compiled) == 2


def test_many_tuples_lead_to_their_programs() -> None:
    compiled = thunder.jit(text_of_parts, max_programs=40)
    x = torch.ones(2)
    tuples = [(f"{number}", None) for number in range(20)]
    for values in tuples:
        compiled(x, values)
    for values in reversed(tuples):
        assert compiled(x, values)[1] == text_of_parts(x, values)[1]
    assert thunder.cache_misses(compiled) == 20


class WithNan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = (float("nan"), -0.0, (1, True))

    def forward(self, x: Tensor, limits: tuple[float, float] = (float("nan"), 1.0)) -> Tensor:
        first, second, (_, flag) = self.values
        return x * (2 if math.isnan(first) and flag else 3) + second + limits[1]


def test_a_tuple_with_nan_is_stored(tmp_path: Path) -> None:
    compiled = thunder.jit(WithNan())
    x = torch.ones(2)
    expected = compiled(x)
    assert thunder.cache_misses(compiled) == 1
    compiled(x)
    assert thunder.cache_misses(compiled) == 1
    thunder.save(compiled, tmp_path / "nan.thunder")
    model = WithNan()
    loaded = thunder.load(tmp_path / "nan.thunder", model, strict=True)
    assert torch.equal(loaded(x), expected)
    model.values = (float("nan"), -0.0, (1, 1))
    with pytest.raises(thunder.ThunderError, match=r"module\.values: was \(nan, -0\.0, \(1, True\)\)"):
        loaded(x)


def test_a_default_of_nan_is_the_same_at_each_call() -> None:
    def inner(x: Tensor, limit: float = float("nan")) -> Tensor:
        return x + (0 if math.isnan(limit) else 1)

    compiled = thunder.jit(lambda x: inner(x))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    assert thunder.cache_misses(compiled) == 1


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class WithEnum(nn.Module):
    def forward(self, x: Tensor, color: Color = Color.RED, dtype: torch.dtype = torch.float32) -> Tensor:
        return (x + (1 if color is Color.RED else 2)).to(dtype)


def test_defaults_of_an_enumeration_are_stored(tmp_path: Path) -> None:
    compiled = thunder.jit(WithEnum())
    expected = compiled(torch.ones(2))
    thunder.save(compiled, tmp_path / "enum.thunder")
    loaded = thunder.load(tmp_path / "enum.thunder", WithEnum(), strict=True)
    assert torch.equal(loaded(torch.ones(2)), expected)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [(slice(1, 2), slice(1, 2)), ((NAN,), (float("nan"),)), (torch.Size((1, 2)), torch.Size((1, 2)))],
)
def test_same_values(found: Any, wanted: Any) -> None:
    assert same_values(found, wanted)


@pytest.mark.parametrize(
    ("found", "wanted"), [(slice(1, True), slice(1, 1)), ((1, 2), torch.Size((1, 2))), ([1], (1,)), ((1,), (1, 2))]
)
def test_values_of_other_classes_or_lengths_differ(found: Any, wanted: Any) -> None:
    assert not same_values(found, wanted)
