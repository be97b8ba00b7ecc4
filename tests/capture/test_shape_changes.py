"""Tensors for results (`out=`) get the shapes of the results, and regions that read them see the new shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

Program = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def into_nothing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = torch.empty(0)
    torch.add(x, y, out=total)
    return total.sum(-1) * y.cos(), total


def into_a_scalar(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = torch.add(x, y, out=torch.empty_like(x))
    return total.sum(-1) * y.cos(), total


def into_two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest, places = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.max(x + y[None], 0, out=(largest, places))
    return largest.sum(-1) * y.cos(), largest, places


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", [into_nothing, into_a_scalar, into_two])
def test_region_sees_the_shape_of_a_resized_tensor(program: Program, cache: Any) -> None:
    compiled = thunder.jit(program, cache=cache, executors=("inductor", "torch"))
    for size in (17, 5):
        x, y = torch.tensor(2.0), torch.linspace(0, 1, size)
        for found, wanted in zip(compiled(x, y), program(x, y), strict=True):
            torch.testing.assert_close(found, wanted)
