"""A loaded artifact knows the numbers that its programs were traced with, so that other numbers become symbolic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import thunder_core as thunder
from thunder_core.compilation.compiler import specializations_of
from thunder_core.workflow.artifact import open_artifact


class Settings:
    """An object whose number differs from call to call."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


def pooled(x: torch.Tensor, settings: Settings) -> torch.Tensor:
    return (x.softmax(1) * x.shape[1] * settings.scale).sum(0)


def save_and_load(calls: list[tuple[int, float]], folder: Path) -> Any:
    """Save a function with programs for these lengths and numbers, and load it."""
    compiled = thunder.jit(pooled)
    for length, scale in calls:
        compiled(torch.randn(2, length), Settings(scale))
    return thunder.load(thunder.save(compiled, folder / "kept.thunder"), pooled)


def misses(function: Any, *calls: tuple[int, float]) -> int:
    """Count the programs that the calls compile. The result of each call equals eager."""
    before = thunder.cache_misses(function)
    for length, scale in calls:
        x = torch.randn(2, length)
        torch.testing.assert_close(function(x, Settings(scale)), pooled(x, Settings(scale)))
    return thunder.cache_misses(function) - before


def test_other_sizes_become_symbolic_at_the_first_that_differs(tmp_path: Path) -> None:
    loaded = save_and_load([(5, 2.0)], tmp_path)
    assert misses(loaded, (5, 2.0)) == 0
    assert misses(loaded, (6, 2.0), (7, 2.0), (99, 2.0)) == 1


def test_other_numbers_become_symbolic_at_the_first_that_differs(tmp_path: Path) -> None:
    loaded = save_and_load([(5, 2.0)], tmp_path)
    assert misses(loaded, (5, 3.0), (5, 4.0), (5, 0.25)) == 1


def test_symbolic_values_stay_symbolic_after_loading(tmp_path: Path) -> None:
    loaded = save_and_load([(5, 2.0), (6, 2.0)], tmp_path)
    assert misses(loaded, (9, 2.0), (8, 2.0)) == 0
    assert misses(loaded, (8, 3.0), (9, 4.0), (70, 5.0)) == 1


def test_numbers_that_a_file_cannot_hold_are_observed_again(tmp_path: Path) -> None:
    loaded = save_and_load([(5, float("inf"))], tmp_path)
    (program,) = open_artifact(tmp_path / "kept.thunder").manifest.programs
    assert program.observed and all(number == 5 or number == 2 for number in program.observed.values())
    assert misses(loaded, (5, 1.0), (5, 2.0), (5, 3.0)) <= 2


def test_guards_say_which_number_refused_a_call(tmp_path: Path) -> None:
    save_and_load([(5, 2.0)], tmp_path)
    (program,) = open_artifact(tmp_path / "kept.thunder").manifest.programs
    assert ("args[1].scale", 2.0) in program.observed.items()
    assert {path for _, path in program.numbers} == {"args[1].scale"}
    assert all("scale" in program.paths_and_words[place][0] for place, _ in program.numbers)


def named(x: torch.Tensor, names: tuple[str, str]) -> torch.Tensor:
    return x + 1 if names == ("a", "b") else x * 2


def test_guards_on_tuples_are_recognized_in_a_stored_program(tmp_path: Path) -> None:
    compiled = thunder.jit(named)
    compiled(torch.ones(2), ("a", "b"))
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept.thunder"), named)
    (program,) = specializations_of(loaded).programs
    assert [guard.path for guard in program.guards if guard.guards_tuple] == ["args[1]"]
    loaded(torch.ones(2), ("a", "c"))
    assert "is ('a', 'c')" in thunder.recompile_reasons(loaded)[0]
