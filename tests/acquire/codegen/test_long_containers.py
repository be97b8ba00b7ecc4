"""A long list or dict of literals that a program reads as a whole has one guard on its items."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program

LENGTH = 40
X = torch.ones(2)


def text_of_list(x: Tensor, values: list[Any]) -> tuple[Tensor, str]:
    return x + 1, "".join([repr(value) for value in values])


def text_of_dict(x: Tensor, values: dict[Any, Any]) -> tuple[Tensor, str]:
    return x + 1, "".join([f"{key!r}: {value!r}" for key, value in values.items()])


def item_guards(compiled: Any, path: str) -> list[str]:
    return [guard.path for guard in last_program(compiled).guards if guard.path.startswith(f"{path}[")]


@pytest.mark.parametrize("items", [range(LENGTH), map(float, range(LENGTH)), map(str, range(LENGTH))])
@pytest.mark.parametrize("kind", [list, dict])
def test_long_container_has_one_guard_on_its_items(kind: type, items: Any) -> None:
    values = list(items) if kind is list else dict(enumerate(items))
    program = text_of_list if kind is list else text_of_dict
    compiled = thunder.jit(program)
    for _ in range(2):
        assert compiled(X, values)[1] == program(X, values)[1]
    assert thunder.cache_misses(compiled) == 1
    assert item_guards(compiled, "args[1]") == []


def test_short_container_has_a_guard_on_each_item() -> None:
    compiled = thunder.jit(text_of_list)
    compiled(X, ["a", "b"])
    assert len(item_guards(compiled, "args[1]")) == 2


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "value": lambda values: values.__setitem__(7, 100),
    "bool in place of an int": lambda values: values.__setitem__(1, True),
    "float in place of an int": lambda values: values.__setitem__(3, 3.0),
    "signed zero": lambda values: values.__setitem__(0, -0.0),
    "another class": lambda values: values.__setitem__(39, None),
    "order": lambda values: values.reverse(),
    "longer": lambda values: values.append(1),
    "shorter": lambda values: values.pop(),
    "object": lambda values: values.__setitem__(5, [5]),
}


@pytest.mark.parametrize("first", [0, 0.0])
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_an_item_is_noticed(change: str, first: float) -> None:
    values: list[Any] = [first, *range(1, LENGTH)]
    compiled = thunder.jit(text_of_list)
    assert compiled(X, values)[1] == text_of_list(X, values)[1]
    CHANGES[change](values)
    for _ in range(2):
        assert compiled(X, values)[1] == text_of_list(X, values)[1]


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_value_of_a_dict_is_noticed(change: str) -> None:
    values: list[Any] = [0, *range(1, LENGTH)]
    compiled = thunder.jit(text_of_dict)
    assert compiled(X, dict(enumerate(values)))[1] == text_of_dict(X, dict(enumerate(values)))[1]
    CHANGES[change](values)
    for _ in range(2):
        assert compiled(X, dict(enumerate(values)))[1] == text_of_dict(X, dict(enumerate(values)))[1]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_number_that_changes_becomes_a_symbol(cache: str) -> None:
    values = [float(number) for number in range(LENGTH)]
    compiled = thunder.jit(lambda x: x + sum(values), cache=cache)
    for number in (3.0, 50.0, 51.0, 52.0):
        values[3] = number
        assert torch.equal(compiled(X), X + sum(values))
    assert thunder.cache_misses(compiled) == 2


def test_program_that_changes_the_list_is_guarded_by_the_values_before() -> None:
    values = list(range(LENGTH))

    def program(x: Tensor) -> Tensor:
        total = sum(values)
        values[2] += 1
        return x + total

    compiled = thunder.jit(program)
    for number in range(4):
        assert torch.equal(compiled(X), X + 780 + number)
    assert values[2] == 6


def test_item_of_a_changed_list_that_was_read_before_stays_guarded() -> None:
    values = ["a"] * LENGTH

    def program(x: Tensor) -> Tensor:
        values.append(values.pop(0))
        return x + len("".join(values))

    compiled = thunder.jit(program)
    for number in range(1, 4):
        assert torch.equal(compiled(X), X + 39 + number)
        values[number] = "a" * (number + 1)
        values[0] = ""
        copy = list(values)
        assert torch.equal(compiled(X), X + len("".join(copy)))
        values[:] = ["a" * (number + 1), *["a"] * 38, ""]
        assert torch.equal(compiled(X), X + number + 39)
        values[:] = ["a" * (number + 1), *["a"] * (LENGTH - 1)]


@pytest.mark.parametrize("kind", [OrderedDict, dict])
def test_keys_that_are_equal_are_told_apart(kind: type) -> None:
    values = kind(enumerate("a" * LENGTH))
    compiled = thunder.jit(text_of_dict)
    assert compiled(X, values)[1] == text_of_dict(X, values)[1]
    other = kind((True if key == 1 else key, value) for key, value in values.items())
    assert compiled(X, other)[1] == text_of_dict(X, other)[1]


class Words(torch.nn.Module):
    """A model with a vocabulary."""

    vocabulary: ClassVar[dict[str, int]] = {f"word {number}": number for number in range(LENGTH)}

    def forward(self, x: Tensor) -> Tensor:
        return x + max(self.vocabulary.values())


def test_artifact_keeps_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(Words())
    compiled(X)
    thunder.save(compiled, tmp_path / "words.thunder", example={"x": X})
    loaded = thunder.load(tmp_path / "words.thunder", Words())
    assert torch.equal(loaded(X), X + LENGTH - 1)
    monkeypatch.setitem(Words.vocabulary, "word 3", 1000)
    assert torch.equal(loaded(X), X + 1000)
