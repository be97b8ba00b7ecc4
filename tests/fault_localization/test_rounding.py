"""Differences that rounding explains, and differences that it does not."""

from __future__ import annotations

import pytest
import torch

from tests.fault_localization.examined import numbers
from thunder_core.backend.claiming.check import perturb
from thunder_core.backend.claiming.double_precision import in_float64
from thunder_core.workflow.fault_localization.rounding import rounding_difference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def product(dtype: torch.dtype):
    """A matrix product in a dtype, computed at once and in two halves, and the function in float64."""
    left, right = numbers(32, 64).to(dtype), numbers(64, 32, seed=1).to(dtype)

    def exact(perturbed: bool = False) -> torch.Tensor:
        change = perturb if perturbed else in_float64
        return change(left) @ change(right)

    halves = left[:, :32] @ right[:32] + left[:, 32:] @ right[32:]
    return halves, left @ right, exact


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_of_additions_is_rounding(dtype):
    halves, whole, exact = product(dtype)
    assert not torch.equal(halves, whole)
    assert rounding_difference(halves, whole, exact).difference is None


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 2e-2)])
def test_a_relative_error_is_no_rounding(dtype, error):
    _, whole, exact = product(dtype)
    measured = rounding_difference(whole * (1 + error), whole, exact)
    assert measured.difference is not None
    assert measured.error > measured.allowed


def test_a_single_wrong_element_is_reported():
    _, whole, exact = product(torch.float32)
    wrong = whole.clone()
    wrong[3, 5] += 1e-3
    difference = rounding_difference(wrong, whole, exact).difference
    assert difference is not None
    assert "at [3, 5]" in difference.what


def test_a_nan_counts():
    _, whole, exact = product(torch.float32)
    wrong = whole.clone()
    wrong[0, 0] = torch.nan
    assert rounding_difference(wrong, whole, exact).difference is not None


def test_integers_are_equal():
    integers = torch.arange(6)
    assert rounding_difference(integers, integers.clone(), lambda perturbed=False: None).difference is None
    assert (
        rounding_difference(integers + (integers == 3), integers, lambda perturbed=False: None).difference is not None
    )
