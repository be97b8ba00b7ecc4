"""Rows more than 2^31 elements apart: offsets are 64 bits wide. (The pages between the rows are never accessed.)"""

from __future__ import annotations

import pytest
import torch

from tests.executors.triton.closeness import assert_forward, draw
from thunder_executors.triton.cross_entropy import cross_entropy
from thunder_executors.triton.gated import gated
from thunder_executors.triton.quantize import quantize_rows, reference
from thunder_executors.triton.rms_norm import rms_norm
from thunder_executors.triton.rotary import rotary

APART = 2**31
WIDTH = 8


@pytest.fixture(scope="module")
def far() -> torch.Tensor:
    """Two rows with 4 GiB between them."""
    rows = torch.empty(APART + WIDTH, dtype=torch.bfloat16).as_strided((2, WIDTH), (APART, 1))
    return rows.copy_(draw(2, WIDTH))


def test_rows_far_apart_in_memory_equal_the_reference(far: torch.Tensor) -> None:
    assert_forward(rms_norm, far, None, 1e-6)
    assert_forward(gated, far, far)
    assert_forward(cross_entropy, far, torch.tensor([3, 4]), dtype=torch.bfloat16)
    values, scales = quantize_rows(far, torch.int8)
    expected, factors = reference(far, torch.int8)
    assert torch.equal(values, expected)
    assert torch.equal(scales, factors)


def test_heads_far_apart_in_memory_equal_the_reference(far: torch.Tensor) -> None:
    table = draw(1, 1, WIDTH, dtype=torch.bfloat16)
    q = far.view(2, 1, 1, WIDTH).transpose(0, 1)
    assert_forward(rotary, q, q, table, table)
