"""Operands that operators write to, and the functional variants of these operators, compared with the operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_core.tracing.capture.torch_facts.writes import (
    UPDATES_STATISTICS,
    out_of_place,
    without_write,
    written_values,
)

ATEN: Any = torch.ops.aten
FORMS = {
    "in place": (ATEN.mul_.Tensor, ATEN.mul.Tensor),
    "in place by a number": (ATEN.add_.Scalar, ATEN.add.Scalar),
    "into a tensor": (ATEN.mul.out, ATEN.mul.Tensor),
    "a factory": (ATEN.zero_.default, ATEN.zero.default),
    "in place under another name": (ATEN.pow_.Scalar, ATEN.pow.Tensor_Scalar),
    "nothing written": (ATEN.mul.Tensor, None),
    "two tensors written": (ATEN.aminmax.out, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_functional_variant_matches_the_operator(form: str) -> None:
    writing, expected = FORMS[form]
    assert without_write(writing) is expected


def test_only_operators_that_overwrite_their_first_operand_are_in_place() -> None:
    assert out_of_place(ATEN.mul_.Tensor) is ATEN.mul.Tensor
    assert out_of_place(ATEN.mul.out) is None
    assert out_of_place(ATEN.__ixor__.Tensor) is None


@pytest.mark.parametrize("training", [True, False])
def test_norm_writes_to_its_statistics_only_in_training(training: bool) -> None:
    x, mean, variance = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    given = (x, None, None, mean, variance, training, 0.1, 1e-5)
    assert "aten::native_batch_norm" in UPDATES_STATISTICS
    ATEN.native_batch_norm.default(*given)
    written = list(written_values(ATEN.native_batch_norm.default, given, {}))
    assert list(map(id, written)) == ([id(mean), id(variance)] if training else [])
    assert bool(mean.any()) is training
