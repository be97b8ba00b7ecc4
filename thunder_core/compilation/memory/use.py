"""The bytes that a computation holds, bound symbol by bound symbol, told from its trace alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.backend.claiming.free import DELETE, LIST
from thunder_core.backend.fusion.machine_code import kept_by
from thunder_core.compilation.memory.region import run_region
from thunder_core.tracing.analysis.storages import Storages, rounded, size_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

PYTHON = "python.code"  # a bound symbol that takes something from where it is; it makes nothing
EAGER = ("", "torch")


@dataclass(frozen=True)
class MemoryLine:
    """A bound symbol of a trace: the bytes `held` after it, and the `peak` while it runs, with what is outside."""

    trace: str
    number: int
    call: str
    held: int
    peak: int


@dataclass(frozen=True)
class MemoryUse:
    """An account of the bytes that a computation holds after each of its bound symbols.

    `outside` are the bytes that are there whatever the computation does: its inputs, parameters and constants.
    `saved` are those that the forward leaves for the backward, and `note` says what is not in the account.
    """

    outside: int
    lines: tuple[MemoryLine, ...]
    saved: int = 0
    note: str = ""

    @property
    def peak(self) -> int:
        """The most bytes that are held at any time."""
        return max((line.peak for line in self.lines), default=self.outside)

    @property
    def own(self) -> int:
        """The peak without what is outside: what running the computation adds."""
        return self.peak - self.outside

    @property
    def highest(self) -> MemoryLine | None:
        """The first bound symbol at which the peak is reached."""
        return next((line for line in self.lines if line.peak == self.peak), None)

    def __str__(self) -> str:
        told = [f"peak {self.peak:,} bytes, {self.outside:,} of them outside"]
        if self.highest is not None:
            told[0] += f", in line {self.highest.number} of {self.highest.trace}: {self.highest.call}"
        told += [f"saved for the backward: {self.saved:,} bytes"] if self.saved else []
        return "\n".join([*told, self.note] if self.note else told)


def memory_use(trace: Trace) -> MemoryUse:
    """The bytes that a trace holds, if it runs as it stands: what no bound symbol deletes lives to its end."""
    meter = Meter()
    meter.give(proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy))
    meter.keep(trace.constants)
    meter.unpack(trace)
    outside = meter.outside
    return MemoryUse(outside, tuple(meter.run(trace)))


@dataclass
class Meter:
    """Runs traces, one after the other, on sizes alone."""

    storages: Storages = field(default_factory=Storages)
    outside: int = 0
    lists: dict[str, tuple[Proxy, ...]] = field(default_factory=dict)

    def give(self, proxies: Iterable[TensorProxy]) -> None:
        """Tensors that are there before, and stay."""
        for proxy in proxies:
            self.storages.make(proxy.name, size_of(proxy))
            self.storages.pin(proxy.name)
        self.outside = self.storages.held

    def keep(self, constants: Mapping[str, object]) -> None:
        """Hold the constants of a trace, which stay."""
        for name, value in constants.items():
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.storages.make(name, value.untyped_storage().nbytes())
                self.storages.pin(name)
        self.outside = self.storages.held

    def unpack(self, trace: Trace) -> None:
        """Hold what a trace takes out of the list that it is given; what has an origin outside stays."""
        taken = [proxy for bsym in trace.bound_symbols if bsym.symbol.name == PYTHON for proxy in bsym.tensors]
        self.give(proxy for proxy in taken if not self.storages.knows(proxy.name) and is_outside(proxy, trace))
        for proxy in taken:
            if not self.storages.knows(proxy.name):
                self.storages.make(proxy.name, size_of(proxy))

    def run(self, trace: Trace) -> Iterator[MemoryLine]:
        """Each bound symbol with what is held after it."""
        for number, bsym in enumerate(trace.bound_symbols, start=1):
            peak = self._run(bsym)
            yield MemoryLine(trace.name, number, bsym.symbol.name, self.storages.held, peak)

    def end(self, names: Iterable[str]) -> None:
        """The end of a function that returns these names: its other names go."""
        kept = set(names)
        for name in self.storages.names:
            if name not in kept:
                self.storages.drop(name)

    def _run(self, bsym: BoundSymbol) -> int:
        """The peak while a bound symbol runs."""
        before = self.storages.held
        if bsym.symbol.name == PYTHON:
            return before
        if bsym.symbol.name == DELETE.name:
            for name in deleted(bsym):
                self.storages.drop(name)
            return before
        if bsym.symbol.name == LIST.name:
            self._put(bsym.outputs[0].name, bsym.inputs)
            return before
        if bsym.symbol.empties:
            return self._emptying(bsym)
        code = kept_by(bsym.symbol.target)
        if code is not None:
            return run_region(code.text, bsym, self.storages)
        if bsym.subsymbols and bsym.executor in EAGER:
            return self._steps(bsym)
        self.storages.enter(bsym)
        return self.storages.held + workspace(bsym)

    def _put(self, list_name: str, proxies: tuple[Proxy, ...]) -> None:
        """Let a list hold tensors."""
        self.lists[list_name] = proxies
        for place, proxy in enumerate(proxies):
            self.storages.share(f"{list_name}[{place}]", proxy.name)

    def _emptying(self, bsym: BoundSymbol) -> int:
        """Run a bound symbol that empties a list: what nobody else holds goes while it runs, or at its end."""
        named, alone = self._with_names(bsym)
        code = kept_by(bsym.symbol.target)
        if code is not None:
            peak = run_region(code.text, named, self.storages, alone)
        else:
            self.storages.enter(named)
            peak = self.storages.held
        for name in alone:
            self.storages.drop(name)
        return peak

    def _with_names(self, bsym: BoundSymbol) -> tuple[BoundSymbol, list[str]]:
        """The bound symbol with the names of what its list holds, and those that were deleted and come back for it."""
        list_name = bsym.inputs[0].name if bsym.inputs else ""
        proxies = self.lists.pop(list_name, ())
        alone = [proxy.name for proxy in proxies if not self.storages.knows(proxy.name)]
        for place, proxy in enumerate(proxies):
            if proxy.name in alone:
                self.storages.share(proxy.name, f"{list_name}[{place}]")
            self.storages.drop(f"{list_name}[{place}]")
        return replace(bsym, args=([*proxies],), subsymbols=bsym.subsymbols[1:]) if proxies else bsym, alone

    def _steps(self, bsym: BoundSymbol) -> int:
        """Run the operations that a call consists of; what they make goes with the last that reads it."""
        steps = tuple(bsym.at_level("aten"))
        returned = {proxy.name for proxy in bsym.outputs}
        last = {proxy.name: place for place, step in enumerate(steps) for proxy in (*step.inputs, *step.defines)}
        intermediates: set[str] = set()
        peak = self.storages.held
        for place, step in enumerate(steps):
            self.storages.enter(step)
            intermediates |= {proxy.name for proxy in step.defines} - returned
            peak = max(peak, self.storages.held + workspace(step))
            for name in [name for name in intermediates if last[name] <= place]:
                self.storages.drop(name)
                intermediates.discard(name)
        for proxy in bsym.tensors:  # what no operation was seen to make
            if not self.storages.knows(proxy.name):
                self.storages.make(proxy.name, size_of(proxy))
        return max(peak, self.storages.held)


def is_outside(proxy: Proxy, trace: Trace) -> bool:
    """Whether the origin of a name is an input of the program."""
    origin = trace.origins.get(proxy.name, "gradient of")
    return not origin.startswith("gradient of")


def deleted(bsym: BoundSymbol) -> list[str]:
    """The names that a `del` statement deletes."""
    return [proxy.name for proxy in bsym.args if isinstance(proxy, Proxy)]


def workspace(step: BoundSymbol) -> int:
    """The bytes that an operation takes for itself while it runs, where that is known."""
    workspace_of = WORKSPACES.get(step.symbol.name)
    return 0 if workspace_of is None else workspace_of(step)


def _attention(query: int, key: int, forward: bool) -> Callable[[BoundSymbol], int]:
    """Attention on the CPU: the scores of a block for each thread (aten/native/cpu/FlashAttentionKernel.cpp)."""

    def size(step: BoundSymbol) -> int:
        queries, keys = step.args[query], step.args[key]
        rows, columns, width = map(hint_of, (queries.shape[2], keys.shape[2], queries.shape[3]))
        block = min(rows, 256 if rows >= 768 else 64 if rows >= 192 else 32)
        wide = min(columns, 512)
        elements = block * wide + 2 * block + block * width if forward else 2 * block * wide
        return rounded(elements * 4 * torch.get_num_threads(), queries.device)

    return size


FLASH = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"
WORKSPACES = {
    f"{FLASH}.default": _attention(0, 1, forward=True),
    f"{FLASH}_backward.default": _attention(1, 2, forward=False),
}
