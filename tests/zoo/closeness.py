"""Comparisons of outputs and tensors with those of eager PyTorch, up to rounding."""

from __future__ import annotations

from typing import Any

import torch

from tests.families import tensors

TOLERANCE = 2e-3  # relative to the largest number: sums are computed in another order


def require_same(actual: Any, expected: Any) -> None:
    """Raise `AssertionError` if an output differs from eager's by more than rounding."""
    ours, theirs = list(tensors(actual)), list(tensors(expected))
    if [path for path, _ in ours] != [path for path, _ in theirs] or not theirs:
        raise AssertionError("the structure of the outputs differs from eager's")
    for (path, actual_tensor), (_, expected_tensor) in zip(ours, theirs, strict=True):
        require_close(path, actual_tensor, expected_tensor)


def require_close(name: str, actual: torch.Tensor, expected: torch.Tensor, allowed: float = 0.0) -> None:
    """Raise `AssertionError` if two tensors differ by more than rounding, and by more than `allowed`."""
    actual, expected = actual.detach(), expected.detach()
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise AssertionError(f"the shape or dtype of {name} differs from eager's")
    size = float(expected.double().abs().nan_to_num(0.0, 0.0).max()) if expected.numel() else 0.0
    absolute = max(TOLERANCE, TOLERANCE * size, allowed)
    if not torch.allclose(actual.double(), expected.double(), TOLERANCE, absolute, equal_nan=True):
        raise AssertionError(f"{name} differs from eager's")
