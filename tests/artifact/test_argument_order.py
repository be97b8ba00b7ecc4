"""Keyword arguments of an artifact's example may be passed in any order and by position, also with `strict`."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning, WrongInputs


class Weighted(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None, **others: torch.Tensor) -> torch.Tensor:
        total = a if b is None else a * 2 + b
        for name, value in others.items():
            total = total * len(name) + value
        return total


X, Y, Z = torch.ones(2), torch.full((2,), 3.0), torch.full((2,), 5.0)


def save_and_load(folder: Path, **example: torch.Tensor) -> Path:
    compiled = thunder.jit(Weighted())
    compiled(**example)
    return thunder.save(compiled, folder / "a.thunder", example=example)


def test_an_artifact_accepts_its_keywords_in_another_order(tmp_path: Path) -> None:
    loaded = thunder.load(save_and_load(tmp_path, a=X, b=Y), Weighted(), strict=True)
    for _ in range(2):
        assert torch.equal(loaded(b=Y, a=X), X * 2 + Y)
        assert torch.equal(loaded(a=X, b=Y), X * 2 + Y)
    assert thunder.cache_misses(loaded) == 0
    assert thunder.cache_hits(loaded) == 4


def test_an_artifact_accepts_its_keywords_by_position(tmp_path: Path) -> None:
    loaded = thunder.load(save_and_load(tmp_path, a=X, b=Y), Weighted(), strict=True)
    for _ in range(2):
        assert torch.equal(loaded(X, Y), X * 2 + Y)
        assert torch.equal(loaded(X, b=Y), X * 2 + Y)
    assert thunder.cache_misses(loaded) == 0
    assert thunder.cache_hits(loaded) == 4


class OnlySecond(torch.nn.Module):
    def forward(self, a: torch.Tensor | None = None, b: torch.Tensor | None = None) -> torch.Tensor | None:
        return b if a is None else a - 1


def test_only_the_first_parameters_are_accepted_by_position(tmp_path: Path) -> None:
    compiled = thunder.jit(OnlySecond())
    compiled(b=Y)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "a.thunder", example={"b": Y}), OnlySecond())
    assert torch.equal(loaded(Y), Y - 1)
    assert torch.equal(loaded(b=Y), Y)


def test_a_call_with_two_values_for_an_argument_raises_the_error_of_eager(tmp_path: Path) -> None:
    loaded = thunder.load(save_and_load(tmp_path, a=X, b=Y), Weighted())
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        loaded(X, a=X, b=Y)


def test_keywords_that_the_example_does_not_have_keep_their_order(tmp_path: Path) -> None:
    loaded = thunder.load(save_and_load(tmp_path, a=X, b=Y), Weighted())
    eager = Weighted()
    for order in ({"cc": Z, "b": Y, "d": X, "a": X}, {"d": X, "a": X, "cc": Z, "b": Y}):
        assert torch.equal(loaded(**order), eager(**order))


@pytest.mark.parametrize("wrong", [{"b": Y}, {"b": Y, "a": X, "c": Z}, {"b": Y, "a": torch.ones(3)}])
def test_keywords_that_no_program_accepts_in_any_order_are_refused(
    tmp_path: Path, wrong: dict[str, torch.Tensor]
) -> None:
    loaded = thunder.load(save_and_load(tmp_path, a=X, b=Y), Weighted(), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)  # nothing is traced again
        for _ in range(4):
            with pytest.raises(WrongInputs):
                loaded(**wrong)


def test_the_error_of_a_call_with_autograd_names_no_grad(tmp_path: Path) -> None:
    with torch.no_grad():
        loaded = thunder.load(save_and_load(tmp_path, a=X), Weighted(), strict=True)
    with pytest.raises(WrongInputs, match=r"torch.is_grad_enabled\(\): was False") as caught:
        loaded(a=X)
    assert "torch.no_grad()" in caught.value.fix
