"""The times of a convolution by PyTorch and by each method, measured on this machine and cached.

All calls run alternately. The time of a call is the minimum of the passes. Before each call, other memory and then the
input are read: in a model, the previous operation leaves its result in the processor's cache, but no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget, clock
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.prepacked_convolution.chain import Chain
from thunder_executors.prepacked_convolution.kernel import CONVOLUTIONS, CONVOLVE, EXECUTOR_NAME, channels_in_panel
from thunder_executors.prepacked_convolution.operator import convolution
from thunder_executors.prepacked_convolution.padding_source import METHODS
from thunder_executors.prepacked_convolution.region import ONEDNN, sizes_of
from thunder_executors.prepacked_convolution.weights import packed_weights

PASSES = 4  # the time of the first pass is ignored
FLOPS, OVERHEAD = 6e10, 4e-3  # of a slow core, for the estimate of a measurement's time
TOLERANCE = 1e-3
SOURCE = "5"  # increases when the compared code changes, except the kernel
CACHE_BYTES = 1 << 25  # bytes that are read between calls, so that no weights remain in the cache
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda result: result,
    "relu": torch.relu_,
    "relu6": functional.relu6,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
}
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Times(KernelTimes):
    """The seconds of a convolution by the fastest `method` and by PyTorch; `methods` has the seconds of all methods."""

    title: str = ""
    method: str = ""
    methods: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        slower_methods = sorted(
            (item for item in self.methods.items() if item[0] != self.method), key=lambda item: item[1]
        )
        texts = [f"{name} {format_time(seconds)}" for name, seconds in slower_methods]
        fastest = f"{self.method} {format_time(self.kernel)}{self.disagreement}"
        library = f"torch.nn.functional.conv2d {format_time(self.library)}"
        return f"{self.title}: {', '.join((fastest, *texts, library))}"


def times_of(chain: Chain, methods: Sequence[str], budget: TuningBudget) -> Times | None:
    """Return the times of a convolution, from the cache or measured; None if the remaining budget is too small."""
    seconds = seconds_for(chain, len(methods))
    return cached_times(
        Times,
        key_of(chain, methods),
        title_of(chain),
        budget,
        seconds,
        lambda: partial(
            measure, chain, methods, CONVOLUTIONS.function(CONVOLVE) if methods != (ONEDNN,) else no_kernel
        ),
    )


def title_of(chain: Chain) -> str:
    """Return a convolution as text: `1 x 64 x 56 x 56 to 128, kernel 3 x 3, stride 2 x 2`, with other settings."""
    sizes = " x ".join(str(hint_of(size)) for size in chain.x.shape)
    top, bottom, left, right = chain.padding
    padding = f"{top} x {left}" if chain.is_symmetric else f"{top} and {bottom} x {left} and {right}"
    kernel, stride = (f"{height} x {width}" for height, width in (chain.weight.shape[2:], chain.stride))
    words = [f"kernel {kernel}", f"stride {stride}", f"padding {padding}"]
    if chain.dilation != (1, 1):
        words.append(f"dilation {chain.dilation[0]} x {chain.dilation[1]}")
    if chain.groups != 1:
        words.append(f"{chain.groups} groups")
    if has_channels_last(chain.x):
        words.append("channels last")
    if chain.addend is not None:
        words.append("addition")
    if chain.activation:
        words.append(chain.activation)
    return f"{sizes} to {chain.weight.shape[0]}, {', '.join(words)}"


def has_channels_last(proxy: TensorProxy) -> bool:
    """Whether the channels of images are adjacent in memory."""
    return bool(hint_of(proxy.stride[1]) == 1 and hint_of(proxy.shape[1]) > 1)


def key_of(chain: Chain, methods: Sequence[str]) -> Key:
    """Return the key of a measurement of a convolution by methods."""
    result = "" if has_channels_last(chain.x) == has_channels_last(chain.result) else ", in another memory format"
    source = f"{SOURCE} {CONVOLUTIONS.digest}"
    return key_on_processor(f"{EXECUTOR_NAME} times", title_of(chain) + result, source, methods=" ".join(methods))


def seconds_for(chain: Chain, methods: int) -> float:
    """Return an estimate of the time for measuring a convolution."""
    multiplications = prod(map(hint_of, (*chain.weight.shape, chain.result.shape[0], *chain.result.shape[2:])))
    return (1 + methods) * PASSES * (2 * multiplications / FLOPS + OVERHEAD)


def measure(chain: Chain, methods: Sequence[str], kernel: Callable[..., Any]) -> Times:
    """Time a convolution by PyTorch and by all methods."""
    x, result = tensor_like(chain.x), tensor_like(chain.result)
    weight = weight_like(chain)
    addend = tensor_like(chain.addend) if chain.addend is not None else None
    calls: dict[str, Call] = {"": partial(by_pytorch, chain, x, addend, weight)}
    for method in methods:
        if method == ONEDNN:
            calls[method] = partial(by_onednn, chain, x, addend, weight)
        else:
            calls[method] = partial(by_kernel, chain, x, addend, weight, result, kernel, method)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        expected = calls[""]().clone()
        agreeing = {name for name in methods if is_close(calls[name](), expected)}
        seconds = seconds_of(calls, x)
    best = min(methods, key=lambda name: (name not in agreeing, seconds[name]))
    by_method = {name: seconds[name] for name in methods}
    return Times(seconds[best], seconds[""], best in agreeing, title_of(chain), best, by_method)


def is_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two results are equal up to rounding."""
    return torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def seconds_of(calls: Mapping[str, Call], x: torch.Tensor) -> dict[str, float]:
    """Return the minimum time of each call with this input; all calls run alternately."""
    read_clock = clock()
    memory = torch.zeros(CACHE_BYTES // 4, dtype=torch.float32, device="cpu")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(PASSES):
        for name, call in calls.items():
            memory.sum()
            x.sum()
            start = read_clock()
            call()
            seconds[name].append(read_clock() - start)
    return {name: min(values[1:]) for name, values in seconds.items()}


def compare_with_library(calls: Mapping[str, Call], name: str, x: torch.Tensor) -> tuple[bool, dict[str, float]]:
    """Return whether a method gives the same result as the library (the call named ""), and the times of all calls."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return is_close(calls[name](), calls[""]()), seconds_of(calls, x)


def by_pytorch(chain: Chain, x: torch.Tensor, addend: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the convolution by PyTorch, with its separate padding, addition and activation.

    One multiplication of the result stands for the normalization.
    """
    top, bottom, left, right = chain.padding
    padding = (top, left)
    if chain.is_padded:
        x, padding = functional.pad(x, (left, right, top, bottom)), (0, 0)
    result = functional.conv2d(x, weight, None, chain.stride, padding, chain.dilation, chain.groups)
    if addend is not None:
        result += addend
    if chain.statistics and not chain.activation:
        result *= 1.0
    return ACTIVATIONS[chain.activation](result)


def by_onednn(chain: Chain, x: torch.Tensor, addend: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the convolution by oneDNN with a packed weight."""
    settings: dict[str, Any] = {"stride": chain.stride, "dilation": chain.dilation, "groups": chain.groups}
    padding, size = (chain.padding[0], chain.padding[2]), tuple(x.shape)
    return convolution(x, (weight, None), addend, padding=padding, size=size, activation=chain.activation, **settings)


def by_kernel(
    chain: Chain,
    x: torch.Tensor,
    addend: torch.Tensor | None,
    weight: torch.Tensor,
    result: torch.Tensor,
    kernel: Callable[..., Any],
    method: str,
) -> torch.Tensor:
    """Return the convolution by a method of the kernel; the next call overwrites the result."""
    packed = packed_weights((weight, None), 0.0, method, channels_in_panel()).weight
    sizes = sizes_of(chain, (*x.shape, *x.stride()), result.shape)
    kernel(x, packed, x, x if addend is None else addend, result, METHODS[method], *sizes, 0, int(addend is not None))
    return result


def no_kernel(*_: Any) -> None:
    """Raise RuntimeError. This function stands in for the kernel if only oneDNN is measured."""
    raise RuntimeError("the kernel is not measured")


def tensor_like(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor of numbers from -1 to 1 with the sizes and the memory format of a proxy.

    The random generator is not used.
    """
    layout = torch.channels_last if has_channels_last(proxy) else torch.contiguous_format
    return ramp([hint_of(size) for size in proxy.shape]).contiguous(memory_format=layout)


def weight_like(chain: Chain) -> torch.Tensor:
    """Return a weight in the shape of a convolution's weight, scaled so that results are about one."""
    shape = list(chain.weight.shape)
    weight: torch.Tensor = ramp(shape) / prod(shape[1:]) ** 0.5
    return weight


def ramp(shape: list[int]) -> torch.Tensor:
    """Return numbers from -1 to 1 in a shape."""
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32, device="cpu").mul_(0.7).sin_().view(shape)
