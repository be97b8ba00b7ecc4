"""Attempts to trace with symbolic sizes that cannot serve the call end before compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.symbolic.families import llama_of_8_layers
from thunder_core.compilation.compiler import compiler
from thunder_core.frontend.acquire import acquire


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the steps of the compiler: assembled traces and claimed traces."""
    taken: list[str] = []

    def noted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def note(*args: Any, **kwargs: Any) -> Any:
            taken.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, note)

    noted(acquire, "assemble")
    noted(compiler.Compiler, "_claim")
    return taken


def branches(x: Tensor) -> Tensor:
    return x.sin() if x.shape[0] == 1 else x.cos()


def branches_at_end(x: Tensor) -> Tensor:
    return (x.exp() * 2).t().contiguous() * (2 if x.size(0) > 1 else 3)


def asks_of_both(x: Tensor) -> Tensor:
    return x + (1 if x.shape[0] != 1 else 2) + (3 if x.shape[1] < 2 else 4)


def swallows(x: Tensor) -> Tensor:
    try:
        return x * (5 if x.shape[0] == 1 else 7)
    except BaseException:
        return x


def asks_of_product(x: Tensor) -> Tensor:
    return x.sin() if x.shape[0] * x.shape[1] == 4 else x.cos()


@pytest.mark.parametrize("program", [branches, branches_at_end, asks_of_both])
@pytest.mark.parametrize("shape", [(1, 4), (1, 1)])
def test_size_of_one_is_decided_before_anything_is_compiled(
    program: Callable[[Tensor], Tensor], shape: tuple[int, int], steps: list[str]
) -> None:
    compiled, x = thunder.jit(program, cache="symbolic values"), torch.randn(shape)
    torch.testing.assert_close(compiled(x), program(x))
    assert steps == ["assemble", "_claim"]


@pytest.mark.parametrize("program", [swallows, asks_of_product])
def test_attempt_that_fails_late_is_not_claimed(program: Callable[[Tensor], Tensor], steps: list[str]) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    for shape in ((1, 4), (2, 3), (4, 1), (2, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), program(x))
    assert steps.count("_claim") == thunder.cache_misses(compiled)


def test_gradient_of_program_that_checks_for_a_size_of_one_matches_eager(steps: list[str]) -> None:
    compiled = thunder.jit(branches, cache="symbolic values")
    for shape in ((1, 4), (3, 4), (1, 5)):
        x = torch.randn(shape, requires_grad=True)
        (expected,) = torch.autograd.grad(branches(x).sum(), x)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert steps.count("_claim") == thunder.cache_misses(compiled) == 2


def test_llama_with_one_row_is_claimed_once(steps: list[str]) -> None:
    model = llama_of_8_layers()
    compiled = thunder.jit(model, cache="symbolic values")
    with torch.no_grad():
        for length in (16, 7, 32):
            tokens = torch.randint(0, 100, (1, length))
            expected = model(tokens, use_cache=False).logits
            torch.testing.assert_close(compiled(tokens, use_cache=False).logits, expected)
    assert steps == ["assemble", "_claim"]
