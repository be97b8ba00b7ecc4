"""The comparison of two results of a computation: equal metadata, and values within rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

# The largest difference that rounding explains, relative to the largest value of the result. A larger difference is
# compared with the same computation in float64: an executor's error may be `TIMES_EAGER` times eager PyTorch's error.
ROUNDING: Mapping[torch.dtype, float] = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
    torch.complex128: 1e-11,
    torch.complex64: 1e-5,
}
TIMES_EAGER = 4.0
EIGHT_BIT_ROUNDING = 0.15  # for floating-point types of eight bits
BLOCK_ELEMENTS = 1 << 18  # elements compared at once, so that large results need no large float64 copies


@dataclass(frozen=True)
class Difference:
    """A difference between two results: a description, and the largest difference of their values (0.0 if equal)."""

    what: str
    largest: float = 0.0


@dataclass(frozen=True)
class ValueComparison:
    """The comparison of a result's values with eager PyTorch's, with the `difference` if the result is wrong.

    `largest` is the largest difference from eager PyTorch. If the computation was also done in float64, `error` is the
    largest difference from the float64 result, `eager_error` is eager PyTorch's largest difference from the float64
    result, and `allowed` is the allowed difference; all are absolute. `scale` is the largest value.
    """

    difference: Difference | None
    largest: float
    error: float = 0.0
    eager_error: float = 0.0
    allowed: float = 0.0
    scale: float = 0.0

    @property
    def used(self) -> float:
        """The error as a fraction of the allowed error."""
        return self.error / self.allowed if self.allowed else 0.0


class Float64Computation(Protocol):
    """A function that computes a result in float64, or returns None if that is impossible.

    With `perturbed`, the result is for inputs that are changed in the last place.
    """

    def __call__(self, perturbed: bool = False) -> torch.Tensor | None:
        """Compute the result."""


def metadata_difference(actual: object, expected: object) -> Difference | None:
    """Return the first difference in kind, dtype, device, shape and strides; None if there is none."""
    if not isinstance(expected, torch.Tensor):
        same = type(actual) is type(expected) and (actual == expected or is_nan(actual))
        return None if same else Difference(f"is {actual!r:.60}, and {expected!r:.60} in eager PyTorch")
    if not isinstance(actual, torch.Tensor):
        return Difference(f"is of class {type(actual).__name__}, but a tensor in eager PyTorch")
    for name in ("dtype", "device", "shape", "layout"):
        left, right = getattr(actual, name), getattr(expected, name)
        if left != right:
            text = (list(left), list(right)) if name == "shape" else (left, right)
            return Difference(f"has {name} {text[0]}, but {text[1]} in eager PyTorch")
    if expected.layout is torch.strided and significant_strides(actual) != significant_strides(expected):
        return Difference(f"has strides {actual.stride()}, but {expected.stride()} in eager PyTorch")
    return None


def is_nan(value: object) -> bool:
    """Whether a value is a float NaN."""
    return isinstance(value, float) and math.isnan(value)


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the dimensions along which a tensor has more than one element."""
    if not tensor.numel():
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def value_difference(actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation) -> ValueComparison:
    """Return the difference in values of two tensors of one shape and dtype, if it exceeds rounding."""
    largest = largest_difference(actual, expected)
    if largest == 0.0:
        return ValueComparison(None, 0.0)
    if expected.is_floating_point() or expected.is_complex():
        scale = largest_value(expected)
        if largest <= ROUNDING.get(expected.dtype, EIGHT_BIT_ROUNDING) * scale:
            return ValueComparison(None, largest, scale=scale)
        reference = exact()
        if reference is not None and reference.shape == expected.shape:
            eager_error = largest_difference(expected, reference)
            if largest_difference(actual, reference) <= TIMES_EAGER * eager_error:
                return ValueComparison(None, largest, scale=scale)
    return ValueComparison(describe_difference(actual, expected, largest), largest)


def describe_difference(actual: torch.Tensor, expected: torch.Tensor, largest: float) -> Difference:
    """Describe the difference of two tensors: the index where it is largest, and the values there."""
    index, left, right = values_at_largest_difference(actual, expected)
    return Difference(f"is {left} at {index}, but {right} in eager PyTorch", largest)


def blocks_of(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield blocks of the elements of tensors of one shape: each item has the same elements of each tensor."""
    for block in zip(*(torch.split(tensor.detach().reshape(-1), BLOCK_ELEMENTS) for tensor in tensors), strict=True):
        yield tuple(map(widen, block))


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor in float64 or complex128, in which differences can be computed."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def differences(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the differences of values: 0 for equal infinities or two NaNs, infinite for other non-finite pairs."""
    left, right = widen(actual), widen(expected)
    same = (left == right) | (left.isnan() & right.isnan())
    return torch.where(same, 0.0, (left - right).abs().nan_to_num(nan=torch.inf))


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of the values of two tensors."""
    if not expected.numel() or actual.shape != expected.shape:
        return float(differences(actual, expected).max()) if expected.numel() else 0.0
    return max(float(differences(*block).max()) for block in blocks_of(actual, expected))


def largest_value(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude of a tensor's values."""
    magnitudes = (values.abs() for (values,) in blocks_of(tensor))
    finite = (values[values.isfinite()] for values in magnitudes)
    return max((float(values.max()) for values in finite if values.numel()), default=0.0)


def values_at_largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> tuple[list[int], str, str]:
    """Return the index of the largest difference, and the two values there."""
    index = torch.unravel_index(differences(actual, expected).argmax(), expected.shape)
    return [int(position) for position in index], f"{actual[index].item():.6g}", f"{expected[index].item():.6g}"
