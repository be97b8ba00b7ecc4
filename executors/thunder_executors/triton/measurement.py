"""Choose between a kernel and the operations that it replaces, by their times on the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol

import torch
from triton.testing import do_bench

from thunder_core.backend.cache import REGION, Key
from thunder_core.backend.claiming.device_code import target_of_programs
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED, KernelTimes, cached_times
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.triton.cubin import VERSION

TOLERANCE = 2**-6  # both round sums to bfloat16, and the library also rounds the weights
MEASURING_SECONDS = 0.2  # the budget for measuring both times
WARMUP, REPEAT = 5, 20  # milliseconds
PATTERN = 2**20 + 7  # elements of operands that differ; rows of other lengths do not repeat each other
ABSENT = "it needs a measurement on the GPU that the programs are compiled for, and this machine does not have the GPU"


class Measurable(Protocol):
    """A computation that a kernel or other operations can run on operands, in the order of `proxies`."""

    @property
    def title(self) -> str:
        """The computation in words; equal computations have equal titles."""

    @property
    def proxies(self) -> Sequence[TensorProxy]:
        """The proxies of the operands."""

    @property
    def source(self) -> str:
        """The digest of the kernel's source."""

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether the kernel is chosen if nothing can be measured."""

    def kernel(self, *operands: torch.Tensor) -> Any:
        """Run the computation by the kernel."""

    def library(self, *operands: torch.Tensor) -> Any:
        """Run the computation by the other operations."""


@dataclass(frozen=True)
class Times(KernelTimes):
    """The milliseconds that a computation takes by the kernel and by the other operations."""

    def __str__(self) -> str:
        return f"triton {self.kernel:.3g} ms{self.disagreement}, PyTorch {self.library:.3g} ms"


def replace_if_faster(
    trace: Trace, executor: str, pairs: Iterable[tuple[Measurable, Mapping[BoundSymbol, list[BoundSymbol]]]]
) -> Trace:
    """Return the trace in which kernels replace the bound symbols that they compute faster.

    `pairs` are computations, each with the replacements of its bound symbols.
    """
    budget, choices = TuningBudget(), dict[str, str]()
    reasons: Counter[str] = Counter()
    replaced: dict[BoundSymbol, list[BoundSymbol]] = {}
    for product, replacement in pairs:
        reason = reason_against(product, budget, choices)
        reasons[reason] += bool(reason)
        replaced |= {} if reason else replacement
    if not reasons:
        return trace
    bsyms = [new for bsym in trace.bound_symbols for new in replaced.get(bsym, [bsym])]
    return trace.having(bsyms, made_by=trace.made_by, refused=(*trace.refused, *refusals(executor, reasons)))


def reason_against(product: Measurable, budget: TuningBudget, choices: dict[str, str]) -> str:
    """Return the reason why PyTorch runs a product; empty if the kernel is chosen. Equal products share a reason."""
    if product.title not in choices:
        choices[product.title] = _reason_against(product, budget)
    return choices[product.title]


def _reason_against(product: Measurable, budget: TuningBudget) -> str:
    if target_of_programs() or Cuda().missing():
        return "" if product.is_chosen_without_gpu else ABSENT
    times = times_of(product, budget)
    if times is None:
        return NOT_MEASURED
    return "" if times.is_kernel_better else f"PyTorch computes {product.title}: {times}"


def refusals(executor: str, reasons: dict[str, int]) -> list[RefusedOperations]:
    """Return the counted reasons as records of a trace, without the empty reason."""
    return [
        RefusedOperations(executor, reason, count, reason not in (ABSENT, NOT_MEASURED), by_measurement=True)
        for reason, count in reasons.items()
        if reason
    ]


def times_of(product: Measurable, budget: TuningBudget) -> Times | None:
    """Return the times of a product, from the cache or measured; None if the remaining budget is too small."""
    return cached_times(
        Times, key_of(product), product.title, budget, MEASURING_SECONDS, lambda: partial(measure, product)
    )


def key_of(product: Measurable) -> Key:
    """Return the key of a measurement: the product, the GPU, and the versions of Triton, PyTorch and the kernel."""
    fields = {
        REGION: product.title,
        "processor": torch.cuda.get_device_name(product.proxies[0].device),
        "compiler": VERSION,
        "torch": torch.__version__,
        "source": product.source,
    }
    return Key("triton times", fields)


def measure(product: Measurable) -> Times:
    """Run a product by the kernel and by PyTorch on a fixed pattern, compare the results, and time both."""
    with on_device(product.proxies[0].device):
        operands = [operand_of(proxy) for proxy in product.proxies]
        agrees = is_close(product.kernel(*operands), product.library(*operands))
        return Times(
            kernel=milliseconds(lambda: product.kernel(*operands)),
            library=milliseconds(lambda: product.library(*operands)),
            agrees=agrees,
        )


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a GPU is the current one, whose events and L2 cache a measurement uses."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def operand_of(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor with the shape and dtype of a proxy; the random generator is not used.

    The numbers repeat after `PATTERN` elements, so that a large operand needs no memory of a wider dtype.
    """
    shape = tuple(int(hint_of(size)) for size in proxy.shape)
    elements = prod(shape)
    numbers = torch.arange(min(elements, PATTERN), device=proxy.device, dtype=torch.float32).mul_(0.7).sin_()
    is_float = proxy.dtype.is_floating_point
    scaled = numbers if is_float else numbers * 127 if proxy.dtype == torch.int8 else numbers * 127 + 128
    repeats = -(-elements // PATTERN)
    return scaled.to(proxy.dtype).repeat(max(repeats, 1))[:elements].view(shape)


def is_close(actual: Any, expected: Any) -> bool:
    """Whether results are equal up to rounding, relative to the largest number of each result."""
    if not isinstance(actual, torch.Tensor):
        return all(is_close(*pair) for pair in zip(actual, expected, strict=True))
    difference = (actual.float() - expected.float()).abs().max()
    return bool(difference <= TOLERANCE * expected.float().abs().max())


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the minimum time of a call on the current GPU; the L2 cache is cleared before each call."""
    with torch.no_grad():
        return float(do_bench(call, warmup=WARMUP, rep=REPEAT, return_mode="min"))
