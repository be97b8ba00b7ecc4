"""Wrapping: consecutive claimed bound symbols (a run) become one bound symbol, which an executor runs as a whole."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.claiming.withholding import WITHHELD
from thunder_core.backend.fusion.lending import LentMemory
from thunder_core.backend.fusion.machine_code import ENTRY, MachineCode
from thunder_core.backend.fusion.written_memory import MemoryOfRun, WrittenMemory
from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.analysis.data_errors import may_raise
from thunder_core.tracing.ir.layout import layout
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


class WrappingExecutor(Executor):
    """An executor that runs many claimed bound symbols in one call; it always comes last in the order of executors.

    The generated code defines a function of the bound symbols and passes it to the function that `wrapper` names
    (`module.name`). The wrapper returns the function to call in place of the bound symbols. Its second argument is the
    number of leading parameters that are constants; the other parameters are tensors and, with `symbolic=True`,
    symbolic integers of the program.

    Further arguments are numbers of tensors. `static` are the tensors with a stable address: tensors that objects hold
    (parameters, buffers, caches), and tensors that the program has as constants. If the bound symbols write to memory
    that objects hold, `held` are the tensors in this memory, and `written` has one tensor for each write.

    If the executor `lends`, the wrapper gets two more arguments. `lent` are the numbers of results that only a backward
    reads, and that stay in the wrapper's memory. `saved` are numbers of tensors that an earlier wrapper has lent.
    """

    wrapper: str
    short_name: str
    lends: ClassVar[bool] = False

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
    lending = LentMemory.of(trace, memory.aliasing) if executor.lends else LentMemory(memory.aliasing)

    def takes(bsym: BoundSymbol) -> bool:
        return is_free(bsym, memory, numbers=executor.symbolic_sizes) and executor.wraps(bsym)

    bsyms = move_transfers_first(trace, memory)
    result: list[BoundSymbol] = []
    names = (f"{executor.short_name}_{number}" for number in itertools.count())
    for indices, is_taken in runs_of(bsyms, memory, takes):
        section = bsyms[indices.start : indices.stop]
        later = _names_read_by(trace, bsyms[indices.stop :])
        run = RegionCandidate.of(section, later, memory, lending) if is_taken else None
        if run is None or not run.is_worthwhile:
            result += section
            continue
        result.append(_wrap(run, executor, next(names)))
        lending.lend(run.outputs[index].name for index in run.lent_outputs)
    lent = lending.names(trace) if executor.lends else trace.lent
    return trace.having(result, made_by=f"wrap by {executor.name}", lent=lent)


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

    A run is on one device. It may write to held memory, and to memory that the run makes (see `MemoryOfRun`).
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
class RegionCandidate:
    """A run of bound symbols that an executor may take as one, with the values that it reads and returns."""

    bsyms: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    memory: WrittenMemory
    lending: LentMemory

    @classmethod
    def of(
        cls, bsyms: Sequence[BoundSymbol], later: frozenset[str], memory: WrittenMemory, lending: LentMemory
    ) -> RegionCandidate:
        """Return the candidate of these bound symbols, which returns the values that are read `later`."""
        defined = {proxy.name: proxy for bsym in bsyms for proxy in bsym.defines}
        inputs = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in defined}
        outputs = tuple(proxy for proxy in defined.values() if proxy.name in later)
        return cls(tuple(bsyms), tuple(inputs.values()), outputs, memory, lending)

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
    def saved_inputs(self) -> tuple[int, ...]:
        """The numbers of the inputs that an earlier wrapper has lent, among the inputs that are tensors."""
        fixed = self.memory.static | self.memory.held_names
        names = [proxy.name for proxy in self.tensors]
        return tuple(i for i, name in enumerate(names) if self.lending.is_lent(name) and name not in fixed)

    @cached_property
    def lent_outputs(self) -> tuple[int, ...]:
        """The numbers of the results that stay in the wrapper's memory, because only a backward reads them."""
        return tuple(i for i, proxy in self._new_outputs if self.lending.may_be_lent(proxy.name))

    @cached_property
    def _new_outputs(self) -> list[tuple[int, TensorProxy]]:
        """The results in new memory, each with its number."""
        heads = {self.memory.aliasing.representative(proxy.name) for proxy in self.tensors}
        tensors = [(i, proxy) for i, proxy in enumerate(self.outputs) if isinstance(proxy, TensorProxy)]
        return [(i, proxy) for i, proxy in tensors if self.memory.aliasing.representative(proxy.name) not in heads]

    @property
    def copied_bytes(self) -> int:
        """The bytes that are copied at each call: inputs that no object holds, and new results, except lent ones."""
        fixed = self.memory.static | self.memory.held_names
        saved = set(self.saved_inputs)
        inputs = [proxy for i, proxy in enumerate(self.tensors) if proxy.name not in fixed and i not in saved]
        outputs = [proxy for i, proxy in self._new_outputs if i not in self.lent_outputs]
        return sum(proxy.bytes for proxy in inputs) + self._bytes_by_memory(outputs)

    @property
    def lent_bytes(self) -> int:
        """The bytes of the lent inputs and results."""
        inputs = [self.tensors[number] for number in self.saved_inputs]
        outputs = [proxy for i, proxy in self._new_outputs if i in self.lent_outputs]
        return self._bytes_by_memory(inputs) + self._bytes_by_memory(outputs)

    def _bytes_by_memory(self, proxies: Iterable[TensorProxy]) -> int:
        return sum({self.memory.aliasing.representative(proxy.name): proxy.bytes for proxy in proxies}.values())

    @property
    def is_worthwhile(self) -> bool:
        """Whether one launch of two or more operations, not counting views, saves more time than copies take.

        Lent memory is not copied. But if writing or reading it keeps the GPU busy for the time of the launches, the
        launches cost no time, and a graph would only keep the memory occupied between calls. A copy takes twice as
        long, because it reads and writes.
        """
        launches = sum(not is_view(bsym) for bsym in self.bsyms)
        seconds = (self.copied_bytes + self.lent_bytes / 2) / COPIED_PER_SECOND
        return launches > 1 and seconds < launches * LAUNCH_SECONDS


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
    """Return the text of the wrapper's keyword arguments, as needed (see `WrappingExecutor`)."""
    names = [proxy.name for proxy in run.tensors]
    static = tuple(number for number, name in enumerate(names) if name in run.memory.static)
    options = {
        **(_write_options(names, run.writes, run.memory) if run.writes else {}),
        **({"static": static} if static else {}),
        **({"saved": run.saved_inputs} if run.saved_inputs else {}),
        **({"lent": run.lent_outputs} if run.lent_outputs else {}),
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
