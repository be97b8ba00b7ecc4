"""Wrapping: runs of claimed bound symbols become one bound symbol each, which an executor runs as a whole."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.claiming.withholding import WITHHELD
from thunder_core.backend.fusion.machine_code import ENTRY, MachineCode
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets, is_view
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd
from thunder_core.tracing.ir.layout import GRADIENT, layout
from thunder_core.tracing.ir.listing import Listing, Value
from thunder_core.tracing.ir.printer import list_trace
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, symbolic_sizes_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

LAUNCH_SECONDS = 5e-6  # the cost of a launch from Python: a few microseconds on all measured machines
COPIED_PER_SECOND = 1.5e12  # bytes that a Hopper GPU copies: it reads and writes 3e12 (benchmarks)
ITEM = re.compile(r"\[(?:\d+|'[^']*'|\"[^\"]*\")\]")


class WrappingExecutor(Executor):
    """An executor that runs claimed bound symbols many at a time; it comes last, wherever it is named.

    `wrapper` names the function (`module.name`) that is called with the bound symbols, as a function, and the number of
    its parameters that are constants; the other parameters are tensors and, with `symbolic=True`, the symbolic integers
    of the program. `static` has the numbers of the tensors that objects hold: parameters, buffers, caches. If the bound
    symbols write to memory, the wrapper also gets `held`, the numbers of the tensors whose memory is written to, and
    `written`, one of these numbers for each write. The wrapper returns the function to call in place of the bound
    symbols.
    """

    wrapper: str
    short_name: str

    @abstractmethod
    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol, with no effects but writes to held memory, may be wrapped."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: this executor claims no single bound symbol."""
        return None

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol could be wrapped."""
        return bool(bsym.executor) and not bsym.keeps_place and self.wraps(bsym)

    def wrap_claimed(self, trace: Trace) -> Trace:
        """Return the trace with each run of bound symbols that the executor takes as one bound symbol."""
        return wrap(trace, self)


def wrap(trace: Trace, executor: WrappingExecutor) -> Trace:
    """Return the trace with each run of bound symbols that the executor takes as one bound symbol."""
    bsyms = trace.bound_symbols
    memory = WrittenMemory.of(trace)
    taken = [is_free(bsym, memory, numbers=executor.symbolic_sizes) and executor.wraps(bsym) for bsym in bsyms]
    result: list[BoundSymbol] = []
    count = 0
    for takes, group in groupby(range(len(bsyms)), key=taken.__getitem__):
        places = list(group)
        section = bsyms[places[0] : places[-1] + 1]
        run = RegionCandidate.of(section, _read(trace, bsyms[places[-1] + 1 :]), memory) if takes else None
        if run is not None and run.is_worthwhile:
            section = (_wrap(run, executor, f"{executor.short_name}_{count}"),)
            count += 1
        result += section
    return trace.having(result, made_by=f"wrap by {executor.name}")


@dataclass(frozen=True)
class WrittenMemory:
    """The memory that a trace writes to, divided into held memory (parameters, buffers, caches) and other memory.

    `held` are the names of written memory that objects hold. `apart` are the names of written memory with a different
    address at each call (arguments themselves, and tensors that the trace makes), and the tensors whose making autograd
    records. `static` are the inputs that objects hold, written to or not, and the constants.
    """

    aliasing: AliasSets
    held: frozenset[str]
    apart: frozenset[str]
    static: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> WrittenMemory:
        """Return the memory that a trace writes to."""
        bsyms = trace.bound_symbols
        defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        recorded = followed_by_autograd(trace)
        aliasing = alias_sets(bsyms, trace.aliases)
        from_outside = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
        held, apart = set[str](), set(recorded & defined)
        for head in {aliasing.representative(name) for bsym in bsyms for name in bsym.mutates}:
            names = aliasing.members(head)
            roots = names & from_outside
            stays = roots and all(is_held(trace.origins.get(name, "")) for name in roots) and not names & recorded
            (held if stays else apart).update(names)
        inputs = frozenset(proxy.name for proxy in trace.inputs if is_held(trace.origins.get(proxy.name, "")))
        return cls(aliasing, frozenset(held), frozenset(apart), inputs | trace.constants.keys())

    def places(self, inputs: Sequence[str]) -> tuple[int, ...]:
        """Return the places of the inputs whose memory is written to."""
        return tuple(place for place, name in enumerate(inputs) if name in self.held)


def is_held(origin: str) -> bool:
    """Whether a tensor is an attribute of an object (`module.weight`, `args[0].layers[1].keys`): its address is stable.

    An argument itself, or an item of an argument, is another tensor at most calls, and so is the gradient of a weight.
    """
    return not origin.startswith(GRADIENT) and "." in ITEM.sub("", origin)


@dataclass(frozen=True)
class RegionCandidate:
    """A run of bound symbols that an executor may take as one, with the values that it reads and returns."""

    bsyms: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    memory: WrittenMemory

    @classmethod
    def of(cls, bsyms: Sequence[BoundSymbol], later: frozenset[str], memory: WrittenMemory) -> RegionCandidate:
        """Return the candidate of these bound symbols, which returns the values that are read `later`."""
        defined = {proxy.name: proxy for bsym in bsyms for proxy in bsym.defines}
        inputs = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in defined}
        outputs = tuple(proxy for proxy in defined.values() if proxy.name in later)
        return cls(tuple(bsyms), tuple(inputs.values()), outputs, memory)

    @property
    def tensors(self) -> tuple[TensorProxy, ...]:
        """The inputs that are tensors."""
        return tuple(proxy for proxy in self.inputs if isinstance(proxy, TensorProxy))

    @property
    def is_symbolic(self) -> bool:
        """Whether the run reads or returns symbolic sizes."""
        return next(symbolic_sizes_of((*self.inputs, *self.outputs)), None) is not None

    @property
    def copied_bytes(self) -> int:
        """The bytes that are copied at each call: inputs that no object holds, and results in new memory."""
        fixed = self.memory.static | self.memory.held
        moving = sum(proxy.bytes for proxy in self.tensors if proxy.name not in fixed)
        heads = {self.memory.aliasing.representative(proxy.name) for proxy in self.tensors}
        made = [proxy for proxy in self.outputs if isinstance(proxy, TensorProxy)]
        own = {self.memory.aliasing.representative(proxy.name): proxy.bytes for proxy in made}
        return moving + sum(size for head, size in own.items() if head not in heads)

    @property
    def is_worthwhile(self) -> bool:
        """Whether one launch saves more time than the copies cost; at least two operations, not counting views."""
        launches = sum(not is_view(bsym) for bsym in self.bsyms)
        return launches > 1 and self.copied_bytes / COPIED_PER_SECOND < launches * LAUNCH_SECONDS


def unwrap(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the bound symbols, with wrapped bound symbols in place of their wrapper."""
    for bsym in bsyms:
        yield from bsym.subsymbols if any(inner.executor for inner in bsym.subsymbols) else (bsym,)


def is_free(bsym: BoundSymbol, memory: WrittenMemory, *, numbers: bool = False) -> bool:
    """Whether a bound symbol makes tensors from tensors only, and writes to held memory or to none.

    With `numbers` it may read symbolic integers.
    """
    if bsym.executor == WITHHELD or bsym.keeps_place or not (bsym.defines or bsym.mutates) or not bsym.is_resolved:
        return False
    inputs = [proxy for proxy in bsym.inputs if not (numbers and is_symbolic_integer(proxy))]
    return all(isinstance(proxy, TensorProxy) and proxy.name not in memory.apart for proxy in (*inputs, *bsym.outputs))


def is_symbolic_integer(proxy: Proxy) -> bool:
    """Whether a proxy is a size, or an integer that a program computes from sizes."""
    return isinstance(proxy, NumberProxy) and isinstance(proxy.value, torch.SymInt)


def _read(trace: Trace, bsyms: Iterable[BoundSymbol]) -> frozenset[str]:
    """Return the names that these bound symbols read, or that the trace returns."""
    return frozenset(proxy.name for proxies in (*(bsym.inputs for bsym in bsyms), trace.outputs) for proxy in proxies)


def _wrap(run: RegionCandidate, executor: WrappingExecutor, name: str) -> BoundSymbol:
    inner = Trace(ENTRY, run.inputs, run.bsyms, run.outputs, made_by=f"wrap by {executor.name}")
    listing, constants = list_trace(free_after_last_use(inner))
    function = MachineCode(_text(listing, executor, _options(run)), b"", ()).function(name)
    return BoundSymbol(
        symbol=Symbol(name, function),
        args=(*constants.values(), *run.inputs),
        kwargs={},
        output=run.outputs,
        subsymbols=run.bsyms,
        source=run.bsyms[0].source,
        module=run.bsyms[0].module,
        mutates=tuple(dict.fromkeys(name for bsym in run.bsyms for name in bsym.mutates)),
        executor=executor.name,
    )


def _options(run: RegionCandidate) -> str:
    """Return the wrapper's options as arguments: held inputs, inputs in written memory, and an input for each write."""
    names = [proxy.name for proxy in run.tensors]
    static = tuple(number for number, name in enumerate(names) if name in run.memory.static)
    writes = [name for bsym in run.bsyms for name in bsym.mutates]
    options = {
        **(_write_options(names, writes, run.memory) if writes else {}),
        **({"static": static} if static else {}),
        **({"symbolic": True} if run.is_symbolic else {}),
    }
    return "".join(f", {name}={value!r}" for name, value in options.items())


def _write_options(inputs: Sequence[str], writes: Iterable[str], memory: WrittenMemory) -> dict[str, Any]:
    held = memory.places(inputs)
    by_memory = {memory.aliasing.representative(inputs[place]): place for place in reversed(held)}
    named = {name: place for place, name in enumerate(inputs)}
    written = [named.get(name, by_memory[memory.aliasing.representative(name)]) for name in writes]
    return {"held": held, "written": tuple(sorted(written))}


def _text(listing: Listing, executor: WrappingExecutor, options: str) -> str:
    """Return the bound symbols as a function whose constants are parameters, and the call of the executor's wrapper."""
    count = len(listing.constants)
    renamed = replace(
        listing,
        inputs=(*map(Value, listing.constants), *listing.inputs),
        constants=(),
        imports=tuple(sorted({*listing.imports, executor.wrapper.rpartition(".")[0]})),
    )
    return f"{layout(renamed, comments=False)}\n\n{ENTRY} = {executor.wrapper}({ENTRY}, {count}{options})\n"
