"""Arrays of random numbers whose sizes vary: the prologue draws them with the sizes of each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def drawn_for_a_number(x: Tensor, count: int) -> Tensor:
    return x * torch.tensor(np.random.rand(count)).sum()


def drawn_for_a_size(x: Tensor, _: int) -> Tensor:
    return x * torch.tensor(np.random.rand(x.shape[0]))


def drawn_for_a_computed_size(x: Tensor, _: int) -> Tensor:
    return torch.cat([x, x]) + torch.from_numpy(np.random.normal(size=2 * x.shape[0]))


def spans(shape: tuple[int, int], length: int) -> Any:
    """Return a mask of random spans, as SpecAugment does: C code needs the sizes."""
    share = np.random.rand(1).item()
    mask = np.zeros(shape, dtype=bool)
    for row in range(shape[0]):
        start = np.random.choice(np.arange(shape[1] - length))
        mask[row, start : start + length] = share <= 1
    return mask


def masked(x: Tensor, _: int) -> Tensor:
    rows = x.expand(3, -1).clone()
    rows[torch.tensor(spans((3, rows.shape[1]), 2))] = 0
    return rows.cumsum(1)


@pytest.mark.parametrize("program", [drawn_for_a_number, drawn_for_a_size, drawn_for_a_computed_size, masked])
def test_random_arrays_of_all_sizes_have_one_program(program: Callable[[Tensor, int], Tensor]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for size in (5, 7, 11, 6, 20):
        x = torch.linspace(1, 2, size, requires_grad=True)
        outcomes = []
        for call in (program, compiled):
            np.random.seed(size)
            x.grad = None
            result = call(x, size)
            result.square().sum().backward()  # type: ignore[no-untyped-call]
            outcomes.append((result, x.grad, np.random.rand()))
        torch.testing.assert_close(outcomes[1], outcomes[0])
    assert thunder.cache_misses(compiled) <= 3  # for constant sizes, for symbolic sizes, for symbolic sizes of arrays
