"""Comparison of kernels with the reference in float64, to a few units in the last place of their own dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNITS = {"cpu": 4, "cuda": 16}  # a GPU's exponential is an approximation, and gradients subtract such values


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_integers(size: int, below: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(below, (size,), generator=torch.Generator().manual_seed(seed))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare within a few roundings of `dtype` (that of `actual`): of each number, or of the largest for sums."""
    unit = torch.finfo(dtype or actual.dtype).eps
    assert actual.shape == expected.shape
    largest = expected.abs().max().item() if expected.numel() else 0.0
    tolerance = UNITS[actual.device.type] * unit
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=tolerance, atol=tolerance * largest, equal_nan=True
    )


def wide(value: Any) -> Any:
    """Convert a floating-point tensor to float64, and return other values unchanged."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def gradients(function: Callable[..., Any], args: Sequence[Any], slopes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of each floating-point tensor among the arguments.

    The cotangents have the shapes of the first outputs.
    """
    leaves = [
        value.detach().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in args
    ]
    outputs = tensors(function(*leaves))[: len(slopes)]
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return list(torch.autograd.grad(outputs, asked, list(slopes)))


def assert_forward(operator: Any, *args: Any, dtype: torch.dtype | None = None) -> None:
    """Check that the kernel's outputs equal the reference's."""
    expected = tensors(operator.reference(*map(wide, args)))
    for actual, wanted in zip(tensors(operator(*args)), expected, strict=True):
        assert_close(actual, wanted, dtype)


def assert_backward(operator: Any, *args: Any, outputs: int = 1) -> None:
    """Check that the kernel's gradients equal those of autograd for the reference in float64."""
    results = tensors(operator.launcher(*args))[:outputs]
    slopes = [draw(*result.shape, dtype=result.dtype, seed=9 + number) for number, result in enumerate(results)]
    actual = gradients(operator, args, slopes)
    expected = gradients(operator.reference, [wide(value) for value in args], [slope.double() for slope in slopes])
    inputs = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
    coarsest = max((value.dtype for value in (*inputs, *results)), key=lambda dtype: torch.finfo(dtype).eps)
    for found, wanted, value in zip(actual, expected, inputs, strict=True):
        assert found.dtype == value.dtype
        assert_close(found, wanted, coarsest)
