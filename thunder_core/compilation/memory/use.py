"""The bytes that are allocated after each bound symbol of a computation, computed from its trace alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.backend.claiming.free import DELETE, LIST
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_core.compilation.memory.region import run_region
from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.analysis.collectives import Waits, started_collectives
from thunder_core.tracing.analysis.storages import Storages, round_to_block, size_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

PYTHON = "python.code"  # a bound symbol that unpacks an input and allocates nothing
EAGER = ("", "torch")


@dataclass(frozen=True)
class MemoryLine:
    """A bound symbol of a trace, with the bytes allocated after it (`held`), and the most while it runs (`peak`).

    Both include the bytes `outside`. `starts` is the number of collectives that the bound symbol starts. If it
    computes, it overlaps the collectives that the lines with the numbers `beside` have started.
    """

    trace: str
    number: int
    call: str
    held: int
    peak: int
    starts: int = 0
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that are allocated after each bound symbol of a computation.

    `outside` are the bytes of its inputs, parameters and constants, which are always allocated. `saved` are the bytes
    that the forward saves for the backward. `note` describes memory that is not included.
    """

    outside: int
    lines: tuple[MemoryLine, ...]
    saved: int = 0
    note: str = ""

    @property
    def peak(self) -> int:
        """The most bytes that are allocated at any time."""
        return max((line.peak for line in self.lines), default=self.outside)

    @property
    def own(self) -> int:
        """The peak without the bytes `outside`: the memory that running the computation adds."""
        return self.peak - self.outside

    @property
    def highest(self) -> MemoryLine | None:
        """The first bound symbol at which the peak is reached."""
        return next((line for line in self.lines if line.peak == self.peak), None)

    @property
    def overlapping(self) -> tuple[MemoryLine, ...]:
        """The bound symbols that start collectives which overlap computation."""
        starts = {(line.trace, number) for line in self.lines for number in line.beside}
        return tuple(line for line in self.lines if (line.trace, line.number) in starts)

    def __str__(self) -> str:
        lines = [f"peak {self.peak:,} bytes, {self.outside:,} of them outside"]
        if self.highest is not None:
            lines[0] += f", in line {self.highest.number} of {self.highest.trace}: {self.highest.call}"
        lines += [f"saved for the backward: {self.saved:,} bytes"] if self.saved else []
        if collectives := sum(line.starts for line in self.lines):
            overlapping = sum(line.starts for line in self.overlapping)
            lines += [f"collectives: {collectives}, {overlapping} of them overlap computation"]
        return "\n".join([*lines, self.note] if self.note else lines)


def memory_use(trace: Trace) -> MemoryUse:
    """Return the memory use of a trace. A tensor that no bound symbol deletes stays allocated to the end."""
    meter = Meter()
    meter.add_permanent(proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy))
    meter.add_constants(trace.constants)
    meter.add_unpacked(trace)
    outside = meter.outside
    return MemoryUse(outside, tuple(meter.run(trace)))


@dataclass
class Meter:
    """A simulation of the allocations of traces that run one after another."""

    storages: Storages = field(default_factory=Storages)
    outside: int = 0
    lists: dict[str, tuple[Proxy, ...]] = field(default_factory=dict)

    def add_permanent(self, proxies: Iterable[TensorProxy]) -> None:
        """Add tensors that exist before the run and are never freed."""
        for proxy in proxies:
            self.storages.make(proxy.name, size_of(proxy))
            self.storages.pin(proxy.name)
        self.outside = self.storages.live_bytes

    def add_constants(self, constants: Mapping[str, object]) -> None:
        """Add the constants of a trace, which are never freed."""
        for name, value in constants.items():
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.storages.make(name, value.untyped_storage().nbytes())
                self.storages.pin(name)
        self.outside = self.storages.live_bytes

    def add_unpacked(self, trace: Trace) -> None:
        """Add the tensors that a trace unpacks from its argument list; inputs of the program are never freed."""
        proxies = [proxy for bsym in trace.bound_symbols if bsym.symbol.name == PYTHON for proxy in bsym.tensors]
        self.add_permanent(
            proxy for proxy in proxies if not self.storages.is_live(proxy.name) and is_outside(proxy, trace)
        )
        for proxy in proxies:
            if not self.storages.is_live(proxy.name):
                self.storages.make(proxy.name, size_of(proxy))

    def run(self, trace: Trace) -> Iterator[MemoryLine]:
        """Simulate a trace, and yield a `MemoryLine` for each bound symbol."""
        waits = Waits(trace.bound_symbols)
        for index, bsym in enumerate(trace.bound_symbols):
            peak = self._run(bsym)
            yield MemoryLine(
                trace.name,
                index + 1,
                bsym.symbol.name,
                self.storages.live_bytes,
                peak,
                len(started_collectives(bsym)),
                tuple(start + 1 for start in waits.in_flight(index)) if computes(bsym) else (),
            )

    def end_function(self, names: Iterable[str]) -> None:
        """End a function that returns these names: drop its other names."""
        returned = set(names)
        for name in self.storages.names:
            if name not in returned:
                self.storages.drop(name)

    def _run(self, bsym: BoundSymbol) -> int:
        """Return the peak while a bound symbol runs."""
        before = self.storages.live_bytes
        if bsym.symbol.name == PYTHON:
            return before
        if bsym.symbol.name == DELETE.name:
            for name in deleted_names(bsym):
                self.storages.drop(name)
            return before
        if bsym.symbol.name == LIST.name:
            self._fill_list(bsym.outputs[0].name, bsym.inputs)
            return before
        if bsym.symbol.empties:
            return self._run_with_emptied_list(bsym)
        code = machine_code_of(bsym.symbol.target)
        if code is not None:
            return run_region(code.text, bsym, self.storages)
        if bsym.subsymbols and bsym.executor in EAGER:
            return self._run_operations(bsym)
        self.storages.enter(bsym)
        return self.storages.live_bytes + workspace(bsym)

    def _fill_list(self, list_name: str, proxies: tuple[Proxy, ...]) -> None:
        """Record that a list contains tensors."""
        self.lists[list_name] = proxies
        for index, proxy in enumerate(proxies):
            self.storages.share(f"{list_name}[{index}]", proxy.name)

    def _run_with_emptied_list(self, bsym: BoundSymbol) -> int:
        """Run a bound symbol that empties a list. Tensors to which only the list refers are freed during the run."""
        named, alone = self._with_names(bsym)
        code = machine_code_of(bsym.symbol.target)
        if code is not None:
            peak = run_region(code.text, named, self.storages, alone)
        else:
            self.storages.enter(named)
            peak = self.storages.live_bytes
        for name in alone:
            self.storages.drop(name)
        return peak

    def _with_names(self, bsym: BoundSymbol) -> tuple[BoundSymbol, list[str]]:
        """Return the bound symbol with names in place of its list, and the names of tensors only in the list."""
        list_name = bsym.inputs[0].name if bsym.inputs else ""
        proxies = self.lists.pop(list_name, ())
        alone = [proxy.name for proxy in proxies if not self.storages.is_live(proxy.name)]
        for index, proxy in enumerate(proxies):
            if proxy.name in alone:
                self.storages.share(proxy.name, f"{list_name}[{index}]")
            self.storages.drop(f"{list_name}[{index}]")
        return replace(bsym, args=([*proxies],), subsymbols=bsym.subsymbols[1:]) if proxies else bsym, alone

    def _run_operations(self, bsym: BoundSymbol) -> int:
        """Run the operations of a call, and return the peak. Each intermediate is freed after its last reader."""
        steps = tuple(bsym.at_level("aten"))
        returned = {proxy.name for proxy in bsym.outputs}
        last = {proxy.name: index for index, step in enumerate(steps) for proxy in (*step.inputs, *step.defines)}
        intermediates: set[str] = set()
        peak = self.storages.live_bytes
        for index, step in enumerate(steps):
            self.storages.enter(step)
            intermediates |= {proxy.name for proxy in step.defines} - returned
            peak = max(peak, self.storages.live_bytes + workspace(step))
            for name in [name for name in intermediates if last[name] <= index]:
                self.storages.drop(name)
                intermediates.discard(name)
        for proxy in bsym.tensors:  # outputs of no recorded operation
            if not self.storages.is_live(proxy.name):
                self.storages.make(proxy.name, size_of(proxy))
        return max(peak, self.storages.live_bytes)


def computes(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol computes.

    Bound symbols that communicate, only make views, or only bind or delete names do not compute.
    """
    names_only = bsym.symbol.name in (PYTHON, DELETE.name, LIST.name)
    return not (names_only or bsym.communicates or is_view(bsym))


def is_outside(proxy: Proxy, trace: Trace) -> bool:
    """Whether a proxy is an input of the program, by the origin of its name."""
    origin = trace.origins.get(proxy.name, "gradient of")
    return not origin.startswith("gradient of")


def deleted_names(bsym: BoundSymbol) -> list[str]:
    """Return the names that a `del` statement deletes."""
    return [proxy.name for proxy in bsym.args if isinstance(proxy, Proxy)]


def workspace(step: BoundSymbol) -> int:
    """Return the bytes of an operation's workspace, or 0 if unknown."""
    workspace_of = WORKSPACES.get(step.symbol.name)
    return 0 if workspace_of is None else workspace_of(step)


def _attention(query: int, key: int, forward: bool) -> Callable[[BoundSymbol], int]:
    """Return a function for the workspace of attention on the CPU: the scores of each thread.

    PyTorch allocates them in aten/native/cpu/FlashAttentionKernel.cpp. `query` and `key` are the positions of these
    arguments.
    """

    def size(step: BoundSymbol) -> int:
        queries, keys = step.args[query], step.args[key]
        rows, columns, width = map(hint_of, (queries.shape[2], keys.shape[2], queries.shape[3]))
        block = min(rows, 256 if rows >= 768 else 64 if rows >= 192 else 32)
        wide = min(columns, 512)
        elements = block * wide + 2 * block + block * width if forward else 2 * block * wide
        return round_to_block(elements * 4 * torch.get_num_threads(), queries.device)

    return size


FLASH = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"
WORKSPACES = {
    f"{FLASH}.default": _attention(0, 1, forward=True),
    f"{FLASH}_backward.default": _attention(1, 2, forward=False),
}
