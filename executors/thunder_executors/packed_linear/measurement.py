"""Measures a linear layer with PyTorch's operator and with Thunder's kernel, and caches both times.

First, the results are compared: a kernel that computes wrong values on this processor is never chosen. Then the
operator and the kernel run alternately. As in a model, the input is in the processor's cache, and the weights and the
memory of the result are not. Both functions read a pool of weights, from different places. The time is the minimum over
some passes, divided by the number of calls in a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count as numbers_from
from itertools import islice
from typing import Any

import torch

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget, clock
from thunder_core.backend.quantization.integers import BLOCK
from thunder_core.foundation.memory_limits import available_memory
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.extension.processor import last_cache_bytes
from thunder_executors.packed_linear.huge_pages import HUGE_PAGES
from thunder_executors.packed_linear.kernel import EXECUTOR_NAME, PREPACKED_NAME, library_of
from thunder_executors.packed_linear.packed_weights import PackedWeights
from thunder_executors.packed_linear.product import Product
from thunder_executors.packed_linear.product_kinds import LINEAR
from thunder_executors.packed_linear.source import NAME, PACK

SOURCE = "3"  # increases when the way of measuring changes
# Bytes of the memory for weights: the fewest, and the most, which take a quarter of a second to write.
MIN_POOL_BYTES, MAX_POOL_BYTES = 1 << 26, 1 << 28
MEMORY_SHARE = 8  # the pool is at most this fraction of the free memory
PASSES = 3
PASS_SECONDS = 0.015
CALL_SECONDS = 0.05  # for a longer call, only some columns are measured
MAX_CALLS = 200  # in a pass
# Operations and bytes per second, and seconds per call, of a slow core: for estimates of time.
FLOPS, BANDWIDTH, OVERHEAD = 4e10, 8e9, 1e-5
# Extra weight rows after each weight: the kernel reads packed weights in panels of 32 columns, also past the last
# column.
SLACK = 32
PERIOD = 65_537
LARGEST_INT4 = 8  # the largest absolute value of a 4-bit weight: with scales of at most 1 / 8, a weight is at most 1
# If the slower of two single calls takes over 5 ms and over 4 times the other, no passes are timed.
CLEAR_RATIO, CLEAR_SECONDS = 4.0, 5e-3

empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
Multiply = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Times(KernelTimes):
    """The seconds that a product takes by the kernel of an executor and by PyTorch's library."""

    operation: str = LINEAR
    executor: str = EXECUTOR_NAME

    def __str__(self) -> str:
        kernel, library = format_time(self.kernel), format_time(self.library)
        return f"{self.executor} {kernel}{self.disagreement}, {self.operation} {library}"


def times_of(product: Product, budget: TuningBudget) -> Times | None:
    """Return the times of a product, from the cache or measured; None if the remaining budget is too small."""
    return cached_times(
        Times,
        key_of(product),
        product.title,
        budget,
        measuring_seconds(product),
        lambda: partial(measure, product, library_of(product.kind).function(NAME)),
    )


def key_of(product: Product) -> Key:
    """Return the key of a measurement of a product."""
    source = f"{SOURCE} {library_of(product.kind).digest}"
    return key_on_processor(f"{EXECUTOR_NAME} times", product.title, source)


def call_seconds(rows: int, depth: int, columns: int) -> float:
    """Return an estimate of the seconds of one call on a slow core."""
    return 2 * rows * depth * columns / FLOPS + 4 * depth * columns / BANDWIDTH + OVERHEAD


def fitting_columns(rows: int, depth: int, columns: int, elements: int) -> int:
    """Return the number of measured columns: fewer if a call takes long or the weight has over half of `elements`."""
    fitting = int(columns * CALL_SECONDS / call_seconds(rows, depth, columns))
    return min(columns, max(64, min(fitting, elements // (2 * depth)) // 64 * 64))


def measured_columns(product: Product) -> int:
    """Return the number of measured columns of a product."""
    return fitting_columns(product.rows, product.depth, product.columns, elements_in_pool(product.kind.weight))


def calls_of(seconds: float) -> int:
    """Return the number of calls of `seconds` in a pass, which is long compared with the resolution of the clock."""
    return min(MAX_CALLS, 1 + int(PASS_SECONDS / seconds))


def seconds_of_passes(seconds: float) -> float:
    """Return an estimate of the seconds of all passes of both functions, whose calls take `seconds` on a slow core."""
    return 2 * (PASSES + 1) * calls_of(seconds) * seconds


def measuring_seconds(product: Product) -> float:
    """Return an estimate of the seconds that `measure` takes on a slow core."""
    return seconds_of_passes(measured_call_seconds(product))


def measured_call_seconds(product: Product) -> float:
    """Return an estimate of the seconds of one call with the measured columns on a slow core."""
    return call_seconds(product.rows, product.depth, measured_columns(product))


def elements_in_pool(dtype: torch.dtype) -> int:
    """Return the number of elements of weights of a dtype in the pool."""
    return pool_bytes() // dtype.itemsize


@cache
def pool_bytes() -> int:
    """Return the bytes of the weights in the pool: twice the processor's largest cache, within bounds."""
    free = available_memory()
    most = MAX_POOL_BYTES if free is None else min(MAX_POOL_BYTES, free // MEMORY_SHARE)
    return max(MIN_POOL_BYTES, min(2 * last_cache_bytes(), most))


def measure(product: Product, kernel: Callable[..., Any]) -> Times:
    """Time the kernel and PyTorch's operator; if only some columns ran, scale the times up to all columns."""
    kind, rows, depth, columns = product.kind, product.rows, product.depth, measured_columns(product)
    shape, extra_shape = shapes(product, columns)
    numbers = pattern(max(elements_in_pool(product.kind.weight), 2 * math.prod(shape)) + SLACK * depth, kind.weight)
    x = input_pattern(rows, depth, kind.input)
    extra: tuple[torch.Tensor, ...] = ()
    if product.extra is not None and kind.extra is not None:
        numbers_of_columns = pattern(math.prod(extra_shape), kind.extra).view(extra_shape)
        extra = (numbers_of_columns / LARGEST_INT4 if kind.in_groups else numbers_of_columns,)

    activate = product.activation.function if product.activation else lambda result: result
    number = product.activation.number if product.activation else 0

    def multiply(weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = empty_strided_cpu((rows, columns), (columns, 1), kind.result)
        # The input is contiguous, so its row stride is `depth`.
        sizes = (rows, depth, columns, depth, product.group_length)
        pointer = extra[0] if extra else weight  # without `extra`, the kernel reads nothing from this pointer
        kernel(x, weight, pointer, result, *sizes, len(extra), number)
        return result

    packed_numbers = HUGE_PAGES.empty(len(numbers)).copy_(numbers) if kind.prepacked else numbers
    weights = {"kernel": cold_weights(packed_numbers, shape), "library": cold_weights(numbers, shape, from_middle=True)}
    calls: dict[str, Multiply] = {
        "kernel": multiply,
        "library": lambda weight: activate(kind.function(x, weight, *extra)),
    }
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        weight = next(weights["library"])
        prepared = PackedWeights.of(library_of(kind).function(PACK))(weight) if kind.prepacked else weight
        agrees = is_close(calls["kernel"](prepared), calls["library"](weight), kind.tolerance)
        seconds = seconds_of(calls, weights, calls_of(measured_call_seconds(product)))
    scale = product.columns / columns
    scaled = {name: scale * value for name, value in seconds.items()}
    executor = PREPACKED_NAME if kind.prepacked else EXECUTOR_NAME
    return Times(**scaled, agrees=agrees, operation=kind.operation, executor=executor)


def shapes(product: Product, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a weight with this number of columns, and of its bias or scales."""
    if product.kind.in_groups:
        return (-(-columns // BLOCK), product.depth, BLOCK // 2), (product.groups, columns, 2)
    return (columns, product.depth), (columns,)


def is_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether the results, sums of about one, are equal within the tolerance."""
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def seconds_of(calls: dict[str, Multiply], weights: dict[str, Iterator[torch.Tensor]], count: int) -> dict[str, float]:
    """Return the seconds of a call of each function with its weights: the minimum of passes with `count` calls.

    If single calls differ clearly, no passes are timed. The slower call is repeated first, because another process may
    have interrupted the call.
    """
    once = {name: pass_seconds(call, weights[name], 1) for name, call in calls.items()}
    if is_clear(once):
        slower = max(once, key=once.__getitem__)
        once[slower] = min(once[slower], pass_seconds(calls[slower], weights[slower], 1))
        if is_clear(once):
            return once
    passes = [
        {name: pass_seconds(call, weights[name], count) for name, call in calls.items()} for _ in range(1 + PASSES)
    ]
    return {name: min(seconds[name] for seconds in passes[1:]) / count for name in calls}


def is_clear(seconds: dict[str, float]) -> bool:
    """Whether the slowest call takes so much longer than the fastest that single calls decide."""
    return max(seconds.values()) > max(CLEAR_SECONDS, CLEAR_RATIO * min(seconds.values()))


def input_pattern(rows: int, depth: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an input whose products with a weight are about one, as in a model.

    Activations are slow for large negative products: their exponential functions give denormal numbers.
    """
    x = pattern(rows * depth, dtype).view(rows, depth)
    return x * max(depth, 1) ** -0.5 if dtype.is_floating_point else x


def pattern(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values of a fixed pattern: floats in [-1, 1], or int8 in [-127, 127] (reinterpreted for uint8).

    The values are sines of cubes, so that different rows of a matrix are not correlated. The period is prime, so that
    the rows differ. The random generator is not used.
    """
    indices = torch.arange(PERIOD, device="cpu")
    period = (indices**3 % PERIOD).to(torch.float32).mul_(2 * math.pi / PERIOD).sin_()
    numbers = period.to(dtype) if dtype.is_floating_point else (period * 127).to(torch.int8).view(dtype)
    return numbers.repeat(-(-count // PERIOD))[:count]


def cold_weights(numbers: torch.Tensor, shape: tuple[int, ...], *, from_middle: bool = False) -> Iterator[torch.Tensor]:
    """Cycle through adjacent slices of `numbers` as weights.

    The slices exceed the processor's cache, so a weight has left the cache before its next use. Two functions that run
    alternately start at the first slice and at the middle one, so that neither reads what the other has just read.
    """
    size = math.prod(shape)
    starts = range(0, len(numbers) - size - SLACK * shape[-1] + 1, size)
    for index in numbers_from(len(starts) // 2 if from_middle else 0):
        start = starts[index % len(starts)]
        yield numbers[start : start + size].view(shape)


def pass_seconds(call: Multiply, weights: Iterator[torch.Tensor], count: int) -> float:
    """Return the seconds of one pass with `count` calls, whose results lie in different memory."""
    inputs, read_clock = list(islice(weights, count)), clock()
    start = read_clock()
    results = [call(weight) for weight in inputs]
    seconds = read_clock() - start
    del results  # not before the clock is read
    return seconds
