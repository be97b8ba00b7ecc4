"""The derivative of a batch norm within a region is as precise as PyTorch's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor import EXECUTOR
from thunder_executors.inductor.graph import decompositions

BACKWARD = torch.ops.aten.native_batch_norm_backward.default
GENERATOR = torch.Generator().manual_seed(0)
LARGEST = 1e-6  # relative error, and absolute error of a sum that nearly cancels


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return functional.batch_norm(x * 1.0, None, None, weight, bias, training=True) * 1.0


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Values, a weight, a bias, and a gradient whose sum nearly cancels."""
    x = torch.randn(16, 4, 32, 32, generator=GENERATOR)
    gradient = torch.randn(16, 4, 32, 32, generator=GENERATOR)
    gradient[8:] = -gradient[:8] + 1e-7
    return tuple(value.to(dtype) for value in (x, torch.rand(4) + 0.5, torch.rand(4), gradient))


def gradients(function: Any, x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in (x, weight, bias)]
    function(*leaves).backward(gradient)
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


@pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")
def test_gradients_in_a_region_are_as_near_to_float64_as_in_eager() -> None:
    values = inputs()
    exact = gradients(norm, *(value.double() for value in values))
    ours = gradients(thunder.jit(norm, executors=("inductor", "torch")), *values)
    eager = gradients(norm, *values)
    for found, expected, reference in zip(ours, eager, exact, strict=True):
        error, own = ((one.double() - reference).abs().max().item() for one in (found, expected))
        assert error <= 2 * own + LARGEST * float(reference.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False]])
def test_decomposition_matches_the_operation(
    dtype: torch.dtype, train: bool, is_affine: bool, mask: list[bool]
) -> None:
    x, weight, _, _ = inputs(dtype)
    gradient = torch.randn(x.shape, generator=GENERATOR).to(dtype)
    wide = x.float()
    mean, deviation = wide.mean((0, 2, 3)), (wide.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    running = (torch.zeros(4), torch.ones(4)) if dtype != torch.float64 else (torch.zeros(4).double(),) * 2
    saved = (mean, deviation) if dtype != torch.float64 else (mean.double(), deviation.double())
    if dtype == torch.bfloat16:
        running, saved = (tuple(value.bfloat16() for value in pair) for pair in (running, saved))
    arguments = (gradient, x, weight if is_affine else None, *running, *saved, train, 1e-5, mask)
    found, expected = decompositions()[BACKWARD](*arguments), BACKWARD(*arguments)
    for result, expected_result, wanted in zip(found, expected, mask, strict=True):
        if wanted:
            tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(
                result, expected_result, rtol=tolerance, atol=tolerance * float(expected_result.abs().max())
            )
