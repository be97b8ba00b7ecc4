"""The times of a pooling by the kernel and by PyTorch, measured on this machine and cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional

from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.prepacked_convolution.kernel import CONVOLUTIONS, EXECUTOR_NAME, POOL
from thunder_executors.prepacked_convolution.measurement import (
    OVERHEAD,
    PASSES,
    Call,
    compare_with_library,
    tensor_like,
)
from thunder_executors.prepacked_convolution.pooling import POOLING, Pool

BYTES_PER_SECOND = 4e9  # of a slow core, for the estimate of a measurement's time


@dataclass(frozen=True)
class PoolTimes(KernelTimes):
    """The seconds of a pooling by the kernel and by PyTorch."""

    title: str = ""

    def __str__(self) -> str:
        kernel = f"kernel {format_time(self.kernel)}{self.disagreement}"
        return f"{self.title}: {kernel}, {POOLING} {format_time(self.library)}"


def pool_times(pool: Pool, budget: TuningBudget) -> PoolTimes | None:
    """Return the times of a pooling, from the cache or measured; None if the remaining budget is too small."""
    numbers = prod(map(hint_of, pool.x.shape))
    seconds = 2 * PASSES * (4 * numbers / BYTES_PER_SECOND + OVERHEAD)
    return cached_times(
        PoolTimes,
        key_on_processor(f"{EXECUTOR_NAME} times of pooling", pool_title(pool), CONVOLUTIONS.digest),
        pool_title(pool),
        budget,
        seconds,
        lambda: partial(measure, pool, CONVOLUTIONS.function(POOL)),
    )


def pool_title(pool: Pool) -> str:
    """Return a pooling as text: `mean of 1 x 1280 x 7 x 7`."""
    return f"mean of {' x '.join(str(hint_of(size)) for size in pool.x.shape)}"


def measure(pool: Pool, kernel: Callable[..., Any]) -> PoolTimes:
    """Time a pooling by the kernel and by PyTorch."""
    x = tensor_like(pool.x)
    result = torch.empty(x.shape[:2], dtype=x.dtype, device=x.device)

    def by_kernel() -> torch.Tensor:
        kernel(x, result, *x.shape, *x.stride())
        return result

    def by_pytorch() -> torch.Tensor:
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)

    calls: dict[str, Call] = {"kernel": by_kernel, "": by_pytorch}
    agrees, seconds = compare_with_library(calls, "kernel", x)
    return PoolTimes(seconds["kernel"], seconds[""], agrees, pool_title(pool))
