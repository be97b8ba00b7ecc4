"""The times of attention by PyTorch and by the kernel, measured on this machine and cached.

First, the results are compared: a kernel that computes wrong values on this processor is never chosen. Then PyTorch and
the kernel run alternately, and the time is the minimum over some passes. Large attention is measured for a part of its
batch, heads and rows, and the times are scaled up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget, clock
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.analysis.attention_arguments import ATTENTION, GROUPS
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.packed_attention.attention import Attention, scale_bits, with_batch
from thunder_executors.packed_attention.kernel import ATTENTION_LIBRARY, EXECUTOR_NAME
from thunder_executors.packed_attention.source import NAME
from thunder_executors.packed_linear.measurement import pattern

PASSES = 5  # the time of the first pass is ignored
PASS_SECONDS = 5e-3
CALL_SECONDS = 0.02  # for a longer call, fewer heads and rows are measured
MAX_CALLS = 200  # in a pass
RATE, OVERHEAD = 1e10, 1e-5  # multiplications each second by a slow core, for the estimate of a measurement's time
TOLERANCE = 1e-4
MIN_ROWS = 256


@dataclass(frozen=True)
class Times(KernelTimes):
    """The seconds of attention by the kernel and by PyTorch."""

    def __str__(self) -> str:
        kernel, library = format_time(self.kernel), format_time(self.library)
        return f"{EXECUTOR_NAME} {kernel}{self.disagreement}, {ATTENTION} {library}"


def times_of(attention: Attention, budget: TuningBudget) -> Times | None:
    """Return the times of attention, from the cache or measured; None if the remaining budget is too small."""
    return cached_times(
        Times,
        key_of(attention),
        attention.title,
        budget,
        measuring_seconds(attention),
        lambda: partial(measure, attention, ATTENTION_LIBRARY.function(NAME)),
    )


def key_of(attention: Attention) -> Key:
    """Return the key of a measurement of attention."""
    strides = str([*map(hint_of, attention.strides)])
    return key_on_processor(f"{EXECUTOR_NAME} times", attention.title, ATTENTION_LIBRARY.digest, strides=strides)


def call_seconds(sizes: tuple[int, ...]) -> float:
    """Return an estimate of the time of one call by a slow core."""
    batch, heads, _, rows, keys, width, value_width = sizes
    return batch * heads * rows * keys * (width + value_width) / RATE + OVERHEAD


def measured_sizes(attention: Attention) -> tuple[int, ...]:
    """Return the sizes that are measured: if a call takes long, a smaller batch, and fewer heads and rows."""
    batch, heads, groups, rows, keys, width, value_width = attention.hints

    def sizes() -> tuple[int, ...]:
        return batch, heads, groups, rows, keys, width, value_width

    least = max(1, torch.get_num_threads())
    while call_seconds(sizes()) > CALL_SECONDS and batch > 1 and (batch - 1) * heads >= least:
        batch -= max(1, batch // 8)
    while call_seconds(sizes()) > CALL_SECONDS and groups > 1 and groups % 2 == 0 and heads // 2 >= least:
        heads, groups = heads // 2, groups // 2
    while call_seconds(sizes()) > CALL_SECONDS and rows > MIN_ROWS and not attention.is_causal:
        rows = max(MIN_ROWS, rows // 2)
    return sizes()


def calls_in_pass(attention: Attention) -> int:
    """Return the number of calls in a pass, which is long enough for the clock."""
    return min(MAX_CALLS, 1 + int(PASS_SECONDS / call_seconds(measured_sizes(attention))))


def measuring_seconds(attention: Attention) -> float:
    """Return an estimate of the time for measuring attention."""
    return 2 * (PASSES + 1) * calls_in_pass(attention) * call_seconds(measured_sizes(attention))


def measure(attention: Attention, kernel: Callable[..., Any]) -> Times:
    """Time attention by the kernel and by PyTorch; if only a part ran, scale the times up."""
    sizes = measured_sizes(attention)
    query, key, value, result = tensors_of(attention, sizes)
    mask = mask_like(attention, sizes)
    options: dict[str, Any] = {"is_causal": attention.is_causal, "scale": attention.scale}
    options |= {"attn_mask": mask, GROUPS: attention.is_grouped}
    own, mask_strides = mask_arguments(query, mask, sizes)
    strides = [stride for tensor in (query, key, value, result) for stride in tensor.stride()[:3]]
    rest = (attention.mask_kind, int(attention.is_causal), scale_bits(attention.scale))

    def by_kernel() -> torch.Tensor:
        output = torch.empty_like(result)
        kernel(query, key, value, own, output, *sizes, *strides, *mask_strides, *rest)
        return output

    def by_library() -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, **options)

    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        agrees = torch.allclose(by_kernel(), by_library(), rtol=TOLERANCE, atol=TOLERANCE)
        seconds = seconds_of({"kernel": by_kernel, "library": by_library}, calls_in_pass(attention))
    scale = call_seconds(attention.hints) / call_seconds(sizes)
    return Times(**{name: scale * value for name, value in seconds.items()}, agrees=agrees)


def tensors_of(attention: Attention, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return a query, key, value and result of these sizes, with the same strides as in the attention."""
    batch, heads, groups, rows, keys, width, value_width = sizes
    shapes = {
        "query": (batch, heads, rows, width),
        "key": (batch, groups, keys, width),
        "value": (batch, groups, keys, value_width),
        "result": (batch, heads, rows, value_width),
    }
    proxies = {name: getattr(attention, name) for name in shapes}
    strides = {name: with_batch([*map(hint_of, proxy.stride)], 0) for name, proxy in proxies.items()}
    return [tensor_with_strides(shape, strides[name]) for name, shape in shapes.items()]


def mask_arguments(
    query: torch.Tensor, mask: torch.Tensor | None, sizes: tuple[int, ...]
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the mask and its strides as arguments of the kernel. Without a mask, the query fills its place unread."""
    if mask is None:
        return query, (0, 0, 0, 0)
    batch, heads, _, rows, keys, *_ = sizes
    return mask, mask.expand(batch, heads, rows, keys).stride()


def seconds_of(calls: dict[str, Callable[[], torch.Tensor]], count: int) -> dict[str, float]:
    """Return the time of each call: the minimum of passes."""
    read_clock = clock()
    passes: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(PASSES):
        for name, call in calls.items():
            start = read_clock()
            for _ in range(count):
                call()
            passes[name].append((read_clock() - start) / count)
    return {name: min(seconds[1:]) for name, seconds in passes.items()}


def tensor_with_strides(sizes: tuple[int, ...], strides: tuple[Any, ...]) -> torch.Tensor:
    """Return a tensor of numbers from -1 to 1 with these sizes; the order of its dimensions follows the strides.

    The random generator is not used.
    """
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    dense = pattern(torch.Size(sizes).numel()).view([sizes[dim] for dim in order])
    return dense.permute([order.index(dim) for dim in range(len(sizes))])


def mask_like(attention: Attention, sizes: tuple[int, ...]) -> torch.Tensor | None:
    """Return a mask with the broadcast dimensions of the attention's mask; None if there is none."""
    if attention.mask is None:
        return None
    full = (sizes[0], sizes[1], sizes[3], sizes[4])
    shape = [
        size if hint_of(own) > 1 else 1 for own, size in zip(with_batch(attention.mask.shape, 1), full, strict=True)
    ]
    numbers = pattern(torch.Size(shape).numel()).view(shape)
    return numbers > -0.5 if attention.mask.dtype is torch.bool else numbers
