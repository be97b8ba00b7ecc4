"""A call whose values differ from the traced ones is undone before it is traced again."""

from __future__ import annotations

import torch
from torch import Tensor

import thunder_core as thunder


def transposed_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    return x, x[x > 0].nonzero()


def test_an_expanded_tensor_that_was_transposed_in_place_is_restored() -> None:
    """An expanded tensor cannot be written as a whole: PyTorch refuses a copy into elements that share memory."""
    compiled = thunder.jit(transposed_in_place, executors=("torch",), cache="symbolic values")
    for seed, rows in enumerate((2, 8, 3)):
        data = torch.randn(1, rows + 4, generator=torch.Generator().manual_seed(seed))
        expected = transposed_in_place(data.clone().expand(rows, -1))
        found = compiled(data.clone().expand(rows, -1))
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.stride() == wanted.stride()
            torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
