"""The distances of two tensors from a reference, computed in blocks, so that large logits need no large copies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from thunder_core.workflow.validation.report import Errors

BLOCK = 1 << 20  # elements of a block, and of the sample for quantiles; torch.quantile accepts 1 << 24
SEED = 22  # for sampling elements
ZERO_ERRORS = Errors(maximum=0.0, mean=0.0, median=0.0, p99=0.0)


@dataclass(frozen=True)
class Distance:
    """The errors of an optimized tensor and of eager's, and whether the elements that must be exact agree.

    Integers must be exact, and so must the positions of NaN, infinities and the dtype's extreme values.
    """

    optimized: Errors
    eager: Errors
    scale: float
    cosine: float
    exact_values_agree: bool


def measure_distance(optimized: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> Distance:
    """Return the distance of both tensors from the reference; integers and booleans are compared with eager's."""
    if optimized.is_floating_point() or optimized.is_complex():
        return _measure_numbers(optimized, eager, reference)
    return _measure_integers(optimized, eager)


def blocks(*tensors: torch.Tensor, elements: int = BLOCK) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield matching blocks of rows of the tensors, each block as a matrix in double precision."""
    plain = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    width = plain[0].shape[-1] if plain[0].ndim else 1
    if plain[0].numel() == 0:
        return
    rows = max(1, elements // width)
    for block in zip(*(torch.split(t.detach().reshape(-1, width), rows) for t in plain), strict=True):
        yield tuple(rows_of_block.double() for rows_of_block in block)


def _measure_integers(optimized: torch.Tensor, eager: torch.Tensor) -> Distance:
    sample = _Sample(eager.numel())
    for optimized_block, eager_block in blocks(optimized, eager):
        sample.add((optimized_block - eager_block).abs().flatten())
    same = torch.equal(optimized, eager)
    return Distance(sample.errors(), ZERO_ERRORS, 0.0, 1.0 if same else 0.0, same)


def _measure_numbers(optimized: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> Distance:
    optimized_sample, eager_sample, angle = _Sample(eager.numel()), _Sample(eager.numel()), _Cosine()
    limit, scale, same = torch.finfo(eager.dtype).max, 0.0, True
    for block in blocks(optimized, eager, reference):
        (optimized_values, eager_values, exact), same_codes = _plain_values(limit, *block)
        same = same and same_codes
        optimized_sample.add((optimized_values - exact).abs_().flatten())
        eager_sample.add((eager_values - exact).abs_().flatten())
        angle.add(optimized_values, exact)
        scale = max(scale, exact.abs().max().item() if exact.numel() else 0.0)
    return Distance(optimized_sample.errors(), eager_sample.errors(), scale, angle.cosine, same)


def _plain_values(
    limit: float, optimized_values: torch.Tensor, eager_values: torch.Tensor, exact: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Return the elements that are compared by their errors, and whether the other elements agree exactly."""
    if _are_plain(limit, optimized_values, eager_values, exact):
        return (optimized_values, eager_values, exact), True
    our_codes, eager_codes = _exact_value_codes(optimized_values, limit), _exact_value_codes(eager_values, limit)
    plain = (our_codes == 0) & (eager_codes == 0) & exact.isfinite()
    return (optimized_values[plain], eager_values[plain], exact[plain]), torch.equal(our_codes, eager_codes)


def _are_plain(limit: float, optimized_values: torch.Tensor, eager_values: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether all values are finite, and the values of both outputs are smaller in magnitude than the dtype's limit."""
    largest = [
        max(-low.item(), high.item())
        for low, high in (values.aminmax() for values in (optimized_values, eager_values, exact))
    ]
    return largest[0] < limit and largest[1] < limit and math.isfinite(largest[2])


def _exact_value_codes(values: torch.Tensor, limit: float) -> torch.Tensor:
    """Return 2 for NaN, ±3 for infinities, ±1 for the dtype's extreme values (which masks use), and 0 for others."""
    ends = torch.where(values.abs() >= limit, values.sign(), 0.0)
    return torch.where(values.isnan(), 2.0, torch.where(values.isinf(), 3.0 * values.sign(), ends))


class _Sample:
    """Statistics of errors that are added in blocks: their maximum and mean, and quantiles of a random sample."""

    def __init__(self, expected: int) -> None:
        self.share = min(1.0, BLOCK / expected) if expected else 1.0
        self.generator = torch.Generator().manual_seed(SEED)
        self.count, self.total, self.maximum = 0, 0.0, 0.0
        self.samples: list[torch.Tensor] = []

    def add(self, errors: torch.Tensor) -> None:
        if errors.numel():
            self.count += errors.numel()
            self.total += errors.sum().item()
            self.maximum = max(self.maximum, errors.max().item())
            self.samples.append(self.sample(errors))

    def sample(self, errors: torch.Tensor) -> torch.Tensor:
        """Return a sample of the errors: the same share of each block, at random positions."""
        if self.share == 1.0:
            return errors
        count = math.ceil(errors.numel() * self.share)
        positions = torch.randint(errors.numel(), (count,), generator=self.generator)
        return errors[positions.to(errors.device)]

    def errors(self) -> Errors:
        if not self.count:
            return ZERO_ERRORS
        sampled_errors = torch.cat(self.samples).cpu().numpy()
        median, p99 = np.quantile(sampled_errors, [0.5, 0.99]).tolist()  # faster than PyTorch's: it sorts only a part
        return Errors(maximum=self.maximum, mean=self.total / self.count, median=median, p99=p99)


class _Cosine:
    """The cosine of the angle between two long vectors, whose elements are added in blocks."""

    def __init__(self) -> None:
        self.dot, self.left, self.right = 0.0, 0.0, 0.0

    def add(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.dot += (left * right).sum().item()
        self.left += left.square().sum().item()
        self.right += right.square().sum().item()

    @property
    def cosine(self) -> float:
        if not (self.left and self.right):
            return 1.0 if self.left == self.right else 0.0
        return self.dot / (math.sqrt(self.left) * math.sqrt(self.right))
