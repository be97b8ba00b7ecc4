"""Wrapping: runs of claimed bound symbols become one each, which an executor runs as a whole in its own way."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from thunder_core.analysis.aliasing import AliasSets, alias_sets
from thunder_core.analysis.grad_mode import followed_by_autograd
from thunder_core.claiming.executor import Executor
from thunder_core.claiming.free import free_after_last_use
from thunder_core.claiming.withholding import WITHHELD
from thunder_core.fusion.machine_code import ENTRY, MachineCode
from thunder_core.ir.layout import layout
from thunder_core.ir.listing import Listing, Value
from thunder_core.ir.printer import list_trace
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace

ITEM = re.compile(r"\[(?:\d+|'[^']*'|\"[^\"]*\")\]")


class WrappingExecutor(Executor):
    """An executor that runs what others have claimed, many bound symbols at a time; it comes last, wherever named.

    `wrapper` names the function (`module.name`) that is given the bound symbols, as a function, and how many of its
    parameters are constants; the others are tensors. Where the bound symbols write to some of these, it is also given
    `held`, the places of the tensors whose memory is written to, and `written`, one of these places for each write. It
    returns what is called in place of the bound symbols.
    """

    wrapper: str
    short_name: str

    @abstractmethod
    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol, without effects but writes to held memory, may be part of what is wrapped."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Nothing: who runs a bound symbol is for the others to say."""
        return None

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol could be part of what is wrapped."""
        return bool(bsym.executor) and not bsym.ordered and self.wraps(bsym)

    def wrap_claimed(self, trace: Trace) -> Trace:
        """The trace with each run of bound symbols that the executor takes as one."""
        return wrap(trace, self)


def wrap(trace: Trace, executor: WrappingExecutor) -> Trace:
    """The trace with each run of bound symbols that the executor takes as one bound symbol."""
    bsyms = trace.bound_symbols
    memory = WrittenMemory.of(trace)
    taken = [is_free(bsym, memory) and executor.wraps(bsym) for bsym in bsyms]
    result: list[BoundSymbol] = []
    count = 0
    for takes, group in groupby(range(len(bsyms)), key=taken.__getitem__):
        places = list(group)
        part = bsyms[places[0] : places[-1] + 1]
        if takes and len(part) > 1:
            later = _read(trace, bsyms[places[-1] + 1 :])
            part = (_wrapped(part, later, memory, executor, f"{executor.short_name}_{count}"),)
            count += 1
        result += part
    return trace.having(result, made_by=f"wrap by {executor.name}")


@dataclass(frozen=True)
class WrittenMemory:
    """The memory that a trace writes to: what objects hold, such as parameters, buffers and caches, and what moves.

    `apart` are the names of memory that is written to and of another place at each call: arguments themselves and what
    the trace makes; and the tensors that autograd records the making of.
    """

    aliasing: AliasSets
    held: frozenset[str]
    apart: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> WrittenMemory:
        """The memory that a trace writes to."""
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
        return cls(aliasing, frozenset(held), frozenset(apart))

    def places(self, inputs: Sequence[str]) -> tuple[int, ...]:
        """The places of those inputs whose memory is written to."""
        return tuple(place for place, name in enumerate(inputs) if name in self.held)


def is_held(origin: str) -> bool:
    """Whether a tensor is an attribute of an object (`module.weight`, `args[0].layers[1].keys`): it stays in its place.

    An argument itself, or an item of one, is another tensor at most calls.
    """
    return "." in ITEM.sub("", origin)


def unwrapped(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """The bound symbols with those that a wrapper took in its place."""
    for bsym in bsyms:
        yield from bsym.subsymbols if any(part.executor for part in bsym.subsymbols) else (bsym,)


def is_free(bsym: BoundSymbol, memory: WrittenMemory) -> bool:
    """Whether a bound symbol makes tensors of tensors alone, and writes to memory that is held or to none."""
    if bsym.executor == WITHHELD or bsym.ordered or not (bsym.defines or bsym.mutates) or not bsym.is_resolved:
        return False
    proxies = (*bsym.inputs, *bsym.outputs)
    return all(isinstance(proxy, TensorProxy) and proxy.name not in memory.apart for proxy in proxies)


def _read(trace: Trace, bsyms: Iterable[BoundSymbol]) -> frozenset[str]:
    """The names that these bound symbols read, or that are returned."""
    return frozenset(proxy.name for one in (*(bsym.inputs for bsym in bsyms), trace.outputs) for proxy in one)


def _wrapped(
    bsyms: Sequence[BoundSymbol], later: frozenset[str], memory: WrittenMemory, executor: WrappingExecutor, name: str
) -> BoundSymbol:
    defined = {proxy.name: proxy for bsym in bsyms for proxy in bsym.defines}
    inputs = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in defined}
    outputs = tuple(proxy for proxy in defined.values() if proxy.name in later)
    inner = Trace(ENTRY, tuple(inputs.values()), tuple(bsyms), outputs, made_by=f"wrap by {executor.name}")
    listing, constants = list_trace(free_after_last_use(inner))
    writes = [name for bsym in bsyms for name in bsym.mutates]
    options = _write_options(tuple(inputs), writes, memory) if writes else ""
    function = MachineCode(_text(listing, executor, options), b"", ()).function(name)
    return BoundSymbol(
        symbol=Symbol(name, function),
        args=(*constants.values(), *inputs.values()),
        kwargs={},
        output=outputs,
        subsymbols=tuple(bsyms),
        source=bsyms[0].source,
        module=bsyms[0].module,
        mutates=tuple(dict.fromkeys(writes)),
        executor=executor.name,
    )


def _write_options(inputs: Sequence[str], writes: Iterable[str], memory: WrittenMemory) -> str:
    """The places of the inputs that lie in written memory, and of one such input for each write, as arguments."""
    held = memory.places(inputs)
    by_memory = {memory.aliasing.representative(inputs[place]): place for place in reversed(held)}
    named = {name: place for place, name in enumerate(inputs)}
    written = [named.get(name, by_memory[memory.aliasing.representative(name)]) for name in writes]
    return f", held={held!r}, written={tuple(sorted(written))!r}"


def _text(listing: Listing, executor: WrappingExecutor, options: str) -> str:
    """The bound symbols as a function whose constants are parameters, and what the executor makes of it."""
    count = len(listing.constants)
    renamed = replace(
        listing,
        inputs=(*map(Value, listing.constants), *listing.inputs),
        constants=(),
        imports=tuple(sorted({*listing.imports, executor.wrapper.rpartition(".")[0]})),
    )
    return f"{layout(renamed, comments=False)}\n\n{ENTRY} = {executor.wrapper}({ENTRY}, {count}{options})\n"
