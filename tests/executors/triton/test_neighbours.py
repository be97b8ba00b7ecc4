"""A kernel reads its arguments and not the memory around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.executors.triton.closeness import DTYPES, tensors
from tests.executors.triton.examples import EXAMPLES, random_tensors
from thunder_executors.triton import rms_norm
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.operations import OPERATORS

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")


def surrounded(value: Any) -> Any:
    """The same tensor with NaN (or a number that is no label or code) before and after each of its dimensions."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    poison = float("nan") if value.is_floating_point() else 2**40 if value.itemsize > 1 else 100
    whole = torch.full([size + 3 for size in value.shape], poison, dtype=value.dtype)
    inner = whole[tuple(slice(1, -2) for _ in value.shape)]
    return inner.copy_(value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_memory_around_a_tensor_is_not_read(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rms_norm, "GROUP_ROWS", 5)  # 24 rows make five groups of five
    for arguments in EXAMPLES[name](random_tensors(dtype, "cpu")):
        expected = tensors(OPERATORS[name].launcher(*arguments))
        actual = tensors(OPERATORS[name].launcher(*map(surrounded, arguments)))
        for found, wanted in zip(actual, expected, strict=True):
            assert torch.isfinite(wanted.float()).all()
            torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=0)
