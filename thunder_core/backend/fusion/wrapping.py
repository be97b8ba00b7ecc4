"""Wrapping: consecutive claimed bound symbols (a run) become one bound symbol, which an executor runs as a whole."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.claiming.withholding import WITHHELD
from thunder_core.backend.fusion.machine_code import ENTRY, MachineCode
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets, is_view
from thunder_core.tracing.analysis.data_errors import may_raise
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.ir.layout import GRADIENT, layout
from thunder_core.tracing.ir.listing import Listing, Value
from thunder_core.tracing.ir.printer import list_trace
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, symbolic_sizes_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

LAUNCH_SECONDS = 5e-6  # the cost of a launch from Python: a few microseconds on all measured machines
COPIED_PER_SECOND = 1.5e12  # bytes that a Hopper GPU copies in a second, at 3e12 bytes of reads and writes (benchmarks)
# the largest tensor that may be copied before all other work, as the copy is kept until it is read
SMALL_BYTES = 1 << 16
# The aten operations of a copy to another device.
TRANSFERS = frozenset({"torch.ops.aten._to_copy"})
ITEM = re.compile(r"\[(?:\d+|'[^']*'|\"[^\"]*\")\]")


class WrappingExecutor(Executor):
    """An executor that runs many claimed bound symbols in one call; it always comes last in the order of executors.

    The generated code defines a function of the bound symbols and passes it to the function that `wrapper` names
    (`module.name`). The wrapper returns the function to call in place of the bound symbols. Its second argument is the
    number of leading parameters that are constants; the other parameters are tensors and, with `symbolic=True`,
    symbolic integers of the program.

    Further arguments are numbers of tensors. `static` are the tensors with a stable address: tensors that objects hold
    (parameters, buffers, caches), and tensors that the program has as constants. If the bound symbols write to memory
    that objects hold, `held` are the tensors in this memory, and `written` has one tensor for each write.
    """

    wrapper: str
    short_name: str

    @abstractmethod
    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether the executor can run a claimed bound symbol, whose only effects are writes, inside a wrapper."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: this executor claims no single bound symbol."""
        return None

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol could be wrapped."""
        return bool(bsym.executor) and not bsym.keeps_position and self.wraps(bsym)

    def wrap_claimed(self, trace: Trace) -> Trace:
        """Return the trace in which one bound symbol replaces each run that the executor can wrap."""
        return wrap(trace, self)


def wrap(trace: Trace, executor: WrappingExecutor) -> Trace:
    """Return the trace in which one bound symbol replaces each run that the executor can wrap."""
    memory = WrittenMemory.of(trace)

    def takes(bsym: BoundSymbol) -> bool:
        return is_free(bsym, memory, numbers=executor.symbolic_sizes) and executor.wraps(bsym)

    bsyms = move_transfers_first(trace, memory)
    result: list[BoundSymbol] = []
    names = (f"{executor.short_name}_{number}" for number in itertools.count())
    for indices, is_taken in runs_of(bsyms, memory, takes):
        section = bsyms[indices.start : indices.stop]
        run = RegionCandidate.of(section, _names_read_by(trace, bsyms[indices.stop :]), memory) if is_taken else None
        result += section if run is None or not run.is_worthwhile else (_wrap(run, executor, next(names)),)
    return trace.having(result, made_by=f"wrap by {executor.name}")


def move_transfers_first(trace: Trace, memory: WrittenMemory) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols of a trace, with copies of small inputs from the CPU to another device before all
    others.

    Between other bound symbols, such a copy would end a run. A copy is not moved if its input is written to, or if a
    change of state comes before it.
    """
    bsyms = trace.bound_symbols
    inputs = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
    free = list(itertools.takewhile(lambda bsym: not bsym.keeps_position, bsyms))
    is_moved = [is_transfer(bsym) and reads_only(bsym, inputs - memory.written) for bsym in free]
    first = [bsym for bsym, moves in zip(free, is_moved, strict=True) if moves]
    rest = [bsym for bsym, moves in zip(free, is_moved, strict=True) if not moves]
    return (*first, *rest, *bsyms[len(free) :])


def reads_only(bsym: BoundSymbol, names: Collection[str]) -> bool:
    """Whether a bound symbol reads nothing but values of these names."""
    return all(proxy.name in names for proxy in bsym.inputs)


def is_transfer(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol only copies a small tensor from the CPU to another device."""
    if bsym.has_effect or bsym.functions or not bsym.is_resolved or may_raise(bsym):
        return False
    tensors = [proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)]
    devices = [proxy.device.type for proxy in tensors]
    is_copy = len(devices) == 2 and devices[0] == "cpu" and devices[1] != "cpu" and tensors[1].bytes <= SMALL_BYTES
    operations = {operation.symbol.packet_name for operation in bsym.operations}
    return is_copy and bool(operations) and operations <= TRANSFERS


def runs_of(
    bsyms: Sequence[BoundSymbol], memory: WrittenMemory, takes: Callable[[BoundSymbol], bool]
) -> Iterator[tuple[range, bool]]:
    """Yield ranges of bound symbols, each with True if the range is a run of bound symbols that an executor `takes`.

    A run may write to held memory, and to memory that the run makes (see `MemoryOfRun`).
    """
    start, run = 0, MemoryOfRun(memory)
    is_taken = False
    for index, bsym in enumerate(bsyms):
        joins = takes(bsym)
        if joins and is_taken and not run.admits(bsym):
            yield range(start, index), True
            start, run, is_taken = index, MemoryOfRun(memory), False
        joins = joins and run.admits(bsym)
        if joins is not is_taken:
            if start < index:
                yield range(start, index), is_taken
            start, run, is_taken = index, MemoryOfRun(memory), joins
        if joins:
            run.add(bsym)
    if start < len(bsyms):
        yield range(start, len(bsyms)), is_taken


@dataclass(frozen=True)
class WrittenMemory:
    """The memory that a trace writes to, divided into held memory (parameters, buffers, caches) and moving memory.

    All sets have names of tensors. `held_names` have written memory that objects hold. `moving` have other written
    memory, whose address differs at each call: arguments, and tensors that the trace makes. `from_outside` are
    representative names of the written memory that inputs and constants have. `recorded` are tensors whose operations
    autograd records, and all tensors in their memory if it is written to. `static` are constants and the inputs that
    objects hold, written to or not.
    """

    aliasing: AliasSets
    held_names: frozenset[str]
    moving: frozenset[str]
    from_outside: frozenset[str]
    recorded: frozenset[str]
    static: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> WrittenMemory:
        """Return the memory that a trace writes to."""
        bsyms = trace.bound_symbols
        defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        recorded = tracked_by_autograd(trace)
        aliasing = alias_sets(bsyms, trace.aliases)
        outside = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
        held_names, moving, arguments, barred = set[str](), set[str](), set[str](), set(recorded & defined)
        for head in {aliasing.representative(name) for bsym in bsyms for name in bsym.mutates}:
            names = aliasing.members(head)
            roots = names & outside
            stays = roots and all(is_held(trace.origins.get(name, "")) for name in roots)
            (barred if names & recorded else held_names if stays else moving).update(names)
            arguments.update({head} if roots else ())
        inputs = frozenset(proxy.name for proxy in trace.inputs if is_held(trace.origins.get(proxy.name, "")))
        return cls(
            aliasing,
            held_names=frozenset(held_names),
            moving=frozenset(moving),
            from_outside=frozenset(arguments),
            recorded=frozenset(barred),
            static=inputs | trace.constants.keys(),
        )

    @property
    def written(self) -> frozenset[str]:
        """The names of memory that is written to, and of tensors whose operations autograd records."""
        return self.held_names | self.moving | self.recorded

    def indices(self, inputs: Sequence[str]) -> tuple[int, ...]:
        """Return the indices of the inputs in held memory that the trace writes to."""
        return tuple(index for index, name in enumerate(inputs) if name in self.held_names)

    def moving_heads(self, names: Iterable[str]) -> set[str]:
        """Return the representatives of moving memory among names."""
        return {self.aliasing.representative(name) for name in names if name in self.moving}


@dataclass
class MemoryOfRun:
    """The moving memory that a run of bound symbols reads from outside of the run, and that it writes to."""

    memory: WrittenMemory
    defined: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def admits(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol may be added: the run then still writes to no moving memory from outside."""
        read, written = self._read_and_written_with(bsym)
        return not (written & self.memory.from_outside or written & read)

    def add(self, bsym: BoundSymbol) -> None:
        """Add a bound symbol to the run."""
        self.read, self.written = self._read_and_written_with(bsym)
        self.defined.update(proxy.name for proxy in bsym.defines)

    def _read_and_written_with(self, bsym: BoundSymbol) -> tuple[set[str], set[str]]:
        outside = (proxy.name for proxy in bsym.inputs if proxy.name not in self.defined)
        heads = self.memory.moving_heads
        return self.read | heads(outside), self.written | heads(bsym.mutates)


def is_held(origin: str) -> bool:
    """Whether a tensor is an attribute of an object (`module.weight`, `args[0].layers[1].keys`): its address is stable.

    An argument itself, an item of an argument, and the gradient of a weight are other tensors at most calls.
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
    def writes(self) -> list[str]:
        """The names in held memory that the run writes to, one for each write."""
        names = (name for bsym in self.bsyms for name in bsym.mutates)
        return [name for name in names if name in self.memory.held_names]

    @property
    def is_symbolic(self) -> bool:
        """Whether the run reads or returns symbolic sizes."""
        return next(symbolic_sizes_of((*self.inputs, *self.outputs)), None) is not None

    @property
    def copied_bytes(self) -> int:
        """The bytes that are copied at each call: inputs that no object holds, and results in new memory."""
        fixed = self.memory.static | self.memory.held_names
        input_bytes = sum(proxy.bytes for proxy in self.tensors if proxy.name not in fixed)
        heads = {self.memory.aliasing.representative(proxy.name) for proxy in self.tensors}
        tensors = [proxy for proxy in self.outputs if isinstance(proxy, TensorProxy)]
        own = {self.memory.aliasing.representative(proxy.name): proxy.bytes for proxy in tensors}
        return input_bytes + sum(size for head, size in own.items() if head not in heads)

    @property
    def is_worthwhile(self) -> bool:
        """Whether one launch of two or more operations, not counting views, saves more time than copies take."""
        launches = sum(not is_view(bsym) for bsym in self.bsyms)
        return launches > 1 and self.copied_bytes / COPIED_PER_SECOND < launches * LAUNCH_SECONDS


def unwrap(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the bound symbols, with the members of each wrapper in place of the wrapper."""
    for bsym in bsyms:
        yield from bsym.subsymbols if is_wrapped(bsym) else (bsym,)


def is_wrapped(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is a wrapper: other executors have claimed all of its inner bound symbols.

    A compiled region is no wrapper: its inner bound symbols are unclaimed, or claimed by the executor of the region.
    """
    executors = {inner.executor for inner in bsym.subsymbols}
    return bool(executors) and executors.isdisjoint(("", bsym.executor))


def is_free(bsym: BoundSymbol, memory: WrittenMemory, *, numbers: bool = False) -> bool:
    """Whether a run may contain a bound symbol: its inputs and results are tensors that autograd does not record.

    With `numbers`, the bound symbol may also read symbolic integers.
    """
    if bsym.executor == WITHHELD or bsym.keeps_position or not (bsym.defines or bsym.mutates) or not bsym.is_resolved:
        return False
    inputs = [proxy for proxy in bsym.inputs if not (numbers and is_symbolic_integer(proxy))]
    proxies = (*inputs, *bsym.outputs)
    return all(isinstance(proxy, TensorProxy) and proxy.name not in memory.recorded for proxy in proxies)


def is_symbolic_integer(proxy: Proxy) -> bool:
    """Whether a proxy is a size, or an integer that a program computes from sizes."""
    return isinstance(proxy, NumberProxy) and isinstance(proxy.value, torch.SymInt)


def _names_read_by(trace: Trace, bsyms: Iterable[BoundSymbol]) -> frozenset[str]:
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
        mutates=tuple(dict.fromkeys(run.writes)),
        executor=executor.name,
    )


def _options(run: RegionCandidate) -> str:
    """Return the text of the wrapper's keyword arguments: `static`, `held`, `written` and `symbolic`, as needed."""
    names = [proxy.name for proxy in run.tensors]
    static = tuple(number for number, name in enumerate(names) if name in run.memory.static)
    options = {
        **(_write_options(names, run.writes, run.memory) if run.writes else {}),
        **({"static": static} if static else {}),
        **({"symbolic": True} if run.is_symbolic else {}),
    }
    return "".join(f", {name}={value!r}" for name, value in options.items())


def _write_options(inputs: Sequence[str], writes: Iterable[str], memory: WrittenMemory) -> dict[str, Any]:
    written_indices = memory.indices(inputs)
    by_memory = {memory.aliasing.representative(inputs[index]): index for index in reversed(written_indices)}
    named = {name: index for index, name in enumerate(inputs)}
    written = [named.get(name, by_memory[memory.aliasing.representative(name)]) for name in writes]
    return {"held": written_indices, "written": tuple(sorted(written))}


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
