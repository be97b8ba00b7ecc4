"""The time of a convolution by PyTorch and by oneDNN with a packed weight, measured on this machine and cached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times
from thunder_core.backend.claiming.tuning import TuningBudget, clock
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.extension.processor import processor_name
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.prepacked_convolution.chain import Chain
from thunder_executors.prepacked_convolution.operator import convolution

PASSES = 4  # the first is not measured
FLOPS, OVERHEAD = 6e10, 1e-4  # of a slow core, for the estimate of a measurement's time
TOLERANCE = 1e-3
SOURCE = "1"  # increases when the compared code changes


@dataclass(frozen=True)
class Times(KernelTimes):
    """The seconds of a convolution by oneDNN with a packed weight and by PyTorch."""

    title: str = ""

    def __str__(self) -> str:
        return (
            f"{self.title}: prepacked {format_time(self.kernel)}{self.disagreement}, "
            f"torch.nn.functional.conv2d {format_time(self.library)}"
        )


def times_of(chain: Chain, budget: TuningBudget) -> Times | None:
    """Return the times of a convolution, from the cache or measured; None if the remaining budget is too small."""
    return cached_times(
        Times, key_of(chain), title_of(chain), budget, seconds_for(chain), lambda: partial(measure, chain)
    )


def title_of(chain: Chain) -> str:
    """Return a convolution as text: `1 x 64 x 56 x 56 to 128, kernel 3 x 3, stride 2 x 2`, with other settings."""
    sizes = " x ".join(str(hint_of(size)) for size in chain.x.shape)
    settings = {"kernel": chain.weight.shape[2:], "stride": chain.stride, "padding": chain.padding}
    words = [f"{name} {height} x {width}" for name, (height, width) in settings.items()]
    dilation = "" if chain.dilation == (1, 1) else f", dilation {chain.dilation[0]} x {chain.dilation[1]}"
    groups = "" if chain.groups == 1 else f", {chain.groups} groups"
    layout = ", channels last" if is_channels_last(chain) else ""
    return f"{sizes} to {chain.weight.shape[0]}, {', '.join(words)}{dilation}{groups}{layout}"


def is_channels_last(chain: Chain) -> bool:
    """Whether the channels of the input are adjacent in memory."""
    return hint_of(chain.x.stride[1]) == 1 and hint_of(chain.x.shape[1]) > 1


def key_of(chain: Chain) -> Key:
    """Return the key of a measurement: the convolution, the processor, the threads and the version of PyTorch."""
    facts = {
        "region": title_of(chain),
        "processor": processor_name(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "source": SOURCE,
    }
    return Key("prepacked-convolution times", facts)


def seconds_for(chain: Chain) -> float:
    """Return an estimate of the time for measuring a convolution."""
    multiplications = prod(map(hint_of, (*chain.weight.shape, chain.result.shape[0], *chain.result.shape[2:])))
    return 2 * PASSES * (2 * multiplications / FLOPS + OVERHEAD)


def measure(chain: Chain) -> Times:
    """Time a convolution by both, in turn; the time is the minimum of the passes."""
    layout = torch.channels_last if is_channels_last(chain) else torch.contiguous_format
    x = ramp([hint_of(size) for size in chain.x.shape]).contiguous(memory_format=layout)
    weight = ramp(list(chain.weight.shape)).contiguous(memory_format=layout) / chain.weight.shape[1]
    settings: dict[str, Any] = {
        "stride": chain.stride, "padding": chain.padding, "dilation": chain.dilation, "groups": chain.groups,
    }  # fmt: skip
    follows = torch.relu_ if len(chain.places) > 1 else lambda result: result  # one more pass over the result

    def library() -> torch.Tensor:
        return follows(torch.nn.functional.conv2d(x, weight, None, **settings))

    def kernel() -> torch.Tensor:
        activation = "relu" if len(chain.places) > 1 else ""
        return convolution(x, weight, None, (), None, size=tuple(x.shape), activation=activation, **settings)

    calls = {"kernel": kernel, "library": library}
    read_clock = clock()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        agrees = torch.allclose(calls["kernel"](), calls["library"](), rtol=TOLERANCE, atol=TOLERANCE)
        for _ in range(PASSES):
            for name, call in calls.items():
                start = read_clock()
                call()
                seconds[name].append(read_clock() - start)
    best = {name: min(values[1:]) for name, values in seconds.items()}
    return Times(**best, agrees=agrees, title=title_of(chain))


def ramp(shape: list[int]) -> torch.Tensor:
    """Return numbers from -1 to 1 in a shape; the random generator is not used."""
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32, device="cpu").mul_(0.7).sin_().view(shape)
