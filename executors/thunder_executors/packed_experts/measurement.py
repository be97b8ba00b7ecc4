"""The times of experts' products by PyTorch and by the kernel, measured on this machine and cached.

All measured experts have the same number of rows, and the weights are not in the processor's cache. Experts without
rows, which take time in PyTorch, are not measured. Large products are measured for a part of the experts and columns,
and the times are scaled up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import grouped_mm

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_executors.packed_experts.experts import OPERATION, ExpertProducts
from thunder_executors.packed_experts.kernel import EXECUTOR_NAME, EXPERTS_LIBRARY
from thunder_executors.packed_experts.source import NAME
from thunder_executors.packed_linear import measurement
from thunder_executors.packed_linear.measurement import (
    CALL_SECONDS,
    SLACK,
    call_seconds,
    calls_of,
    cold_weights,
    elements_in_pool,
    fitting_columns,
    input_pattern,
    is_close,
    pattern,
    seconds_of,
    seconds_of_passes,
)

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Times(measurement.Times):
    """The seconds of experts' products by the kernel and by PyTorch."""

    operation: str = OPERATION
    executor: str = EXECUTOR_NAME


@dataclass(frozen=True)
class MeasuredSizes:
    """The sizes of measured products: experts, rows of each expert, depth, and columns."""

    experts: int
    rows: int
    depth: int
    columns: int

    @classmethod
    def of(cls, products: ExpertProducts) -> MeasuredSizes:
        """Return the sizes of some of the experts with rows, and some of the columns, so that a call is short."""
        rows, depth, columns = rows_of_expert(products), products.depth, products.columns
        elements = elements_in_pool(torch.float32)
        columns = fitting_columns(rows, depth, columns, elements)
        experts = min(int(CALL_SECONDS / call_seconds(rows, depth, columns)), elements // (2 * depth * columns))
        return cls(min(active_experts(products), max(1, experts)), rows, depth, columns)

    @property
    def seconds(self) -> float:
        """An estimate of the seconds of one call on a slow core."""
        return self.experts * call_seconds(self.rows, self.depth, self.columns)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the measured weights in memory."""
        return self.experts, self.columns, self.depth


def active_experts(products: ExpertProducts) -> int:
    """Return the number of experts that have rows if the rows are spread evenly."""
    return max(1, min(products.experts, products.rows))


def rows_of_expert(products: ExpertProducts) -> int:
    """Return the number of rows of each expert that has rows."""
    return max(1, round(products.rows / active_experts(products)))


def times_of(products: ExpertProducts, budget: TuningBudget) -> Times | None:
    """Return the times of products, from the cache or measured; None if the remaining budget is too small."""
    return cached_times(
        Times,
        key_of(products),
        products.title,
        budget,
        measuring_seconds(products),
        lambda: partial(measure, products, EXPERTS_LIBRARY.function(NAME)),
    )


def key_of(products: ExpertProducts) -> Key:
    """Return the key of a measurement of products."""
    return key_on_processor(f"{EXECUTOR_NAME} times", products.title, f"{measurement.SOURCE} {EXPERTS_LIBRARY.digest}")


def measuring_seconds(products: ExpertProducts) -> float:
    """Return an estimate of the seconds that `measure` takes on a slow core."""
    return seconds_of_passes(MeasuredSizes.of(products).seconds)


def measure(products: ExpertProducts, kernel: Callable[..., Any]) -> Times:
    """Time the kernel and PyTorch's operator; if only a part ran, scale the times up."""
    sizes = MeasuredSizes.of(products)
    experts, columns, depth = sizes.shape
    rows = experts * sizes.rows
    numbers = pattern(max(elements_in_pool(torch.float32), 2 * experts * columns * depth) + SLACK * depth)
    x = input_pattern(rows, depth, torch.float32)
    offsets = torch.arange(1, experts + 1, dtype=torch.int32, device="cpu") * sizes.rows

    def by_kernel(weights: torch.Tensor) -> torch.Tensor:
        result = torch.empty_strided((rows, columns), (columns, 1), dtype=torch.float32, device="cpu")
        kernel(x, weights, offsets, result, rows, depth, columns, experts, depth, depth, columns * depth)
        return result

    def by_library(weights: torch.Tensor) -> torch.Tensor:
        return grouped_mm(x, weights.transpose(1, 2), offs=offsets)

    weights = {
        "kernel": cold_weights(numbers, sizes.shape),
        "library": cold_weights(numbers, sizes.shape, from_middle=True),
    }
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        first = next(weights["library"])
        agrees = is_close(by_kernel(first), by_library(first), TOLERANCE)
        seconds = seconds_of({"kernel": by_kernel, "library": by_library}, weights, calls_of(sizes.seconds))
    scale = active_experts(products) * products.columns / (experts * columns)
    return Times(scale * seconds["kernel"], scale * seconds["library"], agrees)
