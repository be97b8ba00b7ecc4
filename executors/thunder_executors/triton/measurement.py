"""Choose among kernels and the operations that they replace, by their times on the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from typing import Any, Protocol, TypeAlias

import torch
from triton.errors import TritonError
from triton.testing import do_bench

from thunder_core.backend.cache import REGION, Key
from thunder_core.backend.claiming.device_code import target_of_programs
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED, KernelTimes, cached_times
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import ChosenKernel, RefusedOperations, Trace
from thunder_executors.triton.cubin import VERSION

TOLERANCE = 2**-6  # both round sums to bfloat16, and the library also rounds the weights
CANDIDATE_SECONDS = 0.1  # the budget for measuring the time of a candidate
WARMUP, REPEAT = 5, 20  # milliseconds
PATTERN = 2**20 + 7  # elements of operands that differ; rows of other lengths do not repeat each other
KERNEL = "triton"  # the name of the only candidate
LIBRARY = ""  # the name of the choice that no candidate replaces PyTorch's operations
ABSENT = "it needs a measurement on the GPU that the programs are compiled for, and this machine does not have the GPU"

NO_MEMORY = "the GPU has too little free memory for the operands of a measurement"
STATES = (ABSENT, NOT_MEASURED, NO_MEMORY)  # reasons that depend on the state of the machine


class Measurable(Protocol):
    """A computation that candidates or PyTorch's operations can run on operands, in the order of `proxies`."""

    @property
    def title(self) -> str:
        """The computation in words; equal computations have equal titles."""

    @property
    def proxies(self) -> Sequence[TensorProxy]:
        """The proxies of the operands."""

    @property
    def source(self) -> str:
        """The digest of the kernels' source."""

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether the first candidate is chosen if nothing can be measured."""

    @property
    def candidates(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that may replace PyTorch's operations, by name."""

    def library(self, *operands: torch.Tensor) -> Any:
        """Run the computation by PyTorch's operations."""

    def baseline(self, *operands: torch.Tensor) -> Any:
        """Run the operations whose time a candidate must beat: the library's, or a part of them."""


class OneKernel(ABC):
    """A computation with one candidate, its kernel, which must beat the whole computation by the library."""

    @property
    def candidates(self) -> Mapping[str, Callable[..., Any]]:
        """The kernel."""
        return {KERNEL: self.kernel}

    @abstractmethod
    def kernel(self, *operands: torch.Tensor) -> Any:
        """Run the computation by the kernel."""

    @abstractmethod
    def library(self, *operands: torch.Tensor) -> Any:
        """Run the computation by PyTorch's operations."""

    def baseline(self, *operands: torch.Tensor) -> Any:
        """Run the computation by PyTorch's operations."""
        return self.library(*operands)


@dataclass(frozen=True)
class Times(KernelTimes):
    """The milliseconds that a computation takes by the best candidate, its `name`, and by PyTorch's operations.

    `others` has the milliseconds of the other candidates, and `rival` names PyTorch's operations.
    """

    name: str = KERNEL
    others: Mapping[str, float] = field(default_factory=dict)
    rival: str = "PyTorch"

    def __str__(self) -> str:
        if self.kernel == inf:
            return f"no kernel runs on this GPU, {self.rival} {self.library:.3g} ms"
        others = (f"{name} {time:.3g} ms" for name, time in sorted(self.others.items(), key=lambda item: item[1]))
        best = f"{self.name} {self.kernel:.3g} ms{self.disagreement}"
        return ", ".join((best, *others, f"{self.rival} {self.library:.3g} ms"))


@dataclass(frozen=True)
class Choice:
    """The name of the chosen candidate, or `LIBRARY`, and the times or the reason in words."""

    name: str
    text: str = ""


Replacement: TypeAlias = Callable[[Sequence[str]], Mapping[BoundSymbol, list[BoundSymbol]]]


def always(replaced: Mapping[BoundSymbol, list[BoundSymbol]]) -> Replacement:
    """Return the function that gives the same replacements for every choice."""
    return lambda names: replaced


def replace_if_faster(
    trace: Trace,
    executor: str,
    groups: Iterable[tuple[Sequence[Measurable], Replacement]],
    budget: TuningBudget | None = None,
) -> Trace:
    """Return the trace in which candidates replace the bound symbols that they compute faster.

    A group is a computation at one or several sizes. If a candidate is chosen for one of the sizes, a function returns
    the replacements of bound symbols from the names of the choices for all sizes.
    """
    budget, choices = budget or TuningBudget(), dict[str, Choice]()
    refused, chosen = Counter[str](), Counter[str]()
    replaced: dict[BoundSymbol, list[BoundSymbol]] = {}
    for sizes, replacement in groups:
        own = [choice_of(product, budget, choices) for product in sizes]
        texts = list(dict.fromkeys(choice.text for choice in own if choice.text))
        if any(choice.name != LIBRARY for choice in own):
            replaced |= replacement([choice.name for choice in own])
            chosen.update(filter(None, ["; ".join(texts)]))
        else:
            refused.update(texts)
    if not (refused or replaced):
        return trace
    bsyms = [new for bsym in trace.bound_symbols for new in replaced.get(bsym, [bsym])]
    return trace.having(
        bsyms,
        made_by=trace.made_by,
        refused=(*trace.refused, *refusals(executor, refused)),
        chosen=(*trace.chosen, *(ChosenKernel(executor, text, count) for text, count in chosen.items())),
    )


def choice_of(product: Measurable, budget: TuningBudget, choices: dict[str, Choice]) -> Choice:
    """Return the choice for a computation; equal computations share a choice, in `choices`."""
    if product.title not in choices:
        choices[product.title] = _choice_of(product, budget)
    return choices[product.title]


def _choice_of(product: Measurable, budget: TuningBudget) -> Choice:
    if target_of_programs() or Cuda().missing():
        is_chosen = product.is_chosen_without_gpu
        return Choice(next(iter(product.candidates))) if is_chosen else Choice(LIBRARY, ABSENT)
    try:
        times = times_of(product, budget)
    except torch.OutOfMemoryError:
        return Choice(LIBRARY, NO_MEMORY)
    if times is None:
        return Choice(LIBRARY, NOT_MEASURED)
    if times.is_kernel_better:
        return Choice(times.name, f"{product.title}: {times}")
    return Choice(LIBRARY, f"PyTorch computes {product.title}: {times}")


def refusals(executor: str, reasons: Mapping[str, int]) -> list[RefusedOperations]:
    """Return the counted reasons as records of a trace."""
    return [
        RefusedOperations(executor, reason, count, reason not in STATES, by_measurement=True)
        for reason, count in reasons.items()
    ]


def times_of(product: Measurable, budget: TuningBudget) -> Times | None:
    """Return the times of a product, from the cache or measured; None if the remaining budget is too small."""
    seconds = CANDIDATE_SECONDS * (1 + len(product.candidates))
    return cached_times(Times, key_of(product), product.title, budget, seconds, lambda: prepare(product))


def key_of(product: Measurable) -> Key:
    """Return the key of a measurement: the product, the GPU, and the versions of Triton, PyTorch and the kernels."""
    return key_on_gpu(
        "triton times",
        product.title,
        product.proxies[0].device,
        source=product.source,
        candidates="; ".join(product.candidates),
    )


def key_on_gpu(name: str, region: str, device: torch.device, **others: str) -> Key:
    """Return the key of a measurement on a GPU: the computation, the GPU, the versions, and other fields."""
    machine = {
        "processor": torch.cuda.get_device_name(device),
        "compiler": VERSION,
        "torch": torch.__version__,
    }
    return Key(name, {REGION: region, **machine, **others})


def prepare(product: Measurable) -> Callable[[], Times]:
    """Run a product by each candidate and by PyTorch on a fixed pattern, and return a function that times them.

    This compiles the candidates, and compares their results with those of PyTorch. A candidate that cannot be
    compiled, or needs more shared memory than the GPU has, is dropped.
    """
    device = product.proxies[0].device
    calls: dict[str, Callable[[], Any]] = {}
    agreeing: set[str] = set()
    with on_device(device), torch.no_grad():
        operands = [operand_of(proxy) for proxy in product.proxies]
        expected = product.library(*operands)
        for name, candidate in product.candidates.items():
            call = partial(candidate, *operands)
            try:
                agrees = is_close(call(), expected)
            except TritonError:
                continue
            calls[name] = call
            agreeing.update([name] if agrees else [])

    def times() -> Times:
        with on_device(device):
            return measure(calls, partial(product.baseline, *operands), agreeing)

    return times


def measure(
    candidates: Mapping[str, Callable[[], Any]],
    library: Callable[[], Any],
    agreeing: Collection[str],
    rival: str = "PyTorch",
) -> Times:
    """Return the times of candidates and of the library, which is called `rival`; `agreeing` ones have its values."""
    times = {name: milliseconds(call) for name, call in candidates.items()}
    best = min(times, key=lambda name: (name not in agreeing, times[name]), default=KERNEL)
    others = {name: time for name, time in times.items() if name != best}
    return Times(times.get(best, inf), milliseconds(library), best in agreeing, best, others, rival)


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
