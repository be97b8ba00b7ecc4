"""Aliases: which names of a trace may share memory, as far as the schemas of the aten operations tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves


@dataclass
class Families:
    """Names that may share memory, as a union of sets."""

    parents: dict[str, str] = field(default_factory=dict)

    def head(self, name: str) -> str:
        """The one name that stands for all that share memory with this one."""
        while (parent := self.parents.get(name, name)) != name:
            self.parents[name] = self.parents.get(parent, parent)
            name = parent
        return name

    def join(self, one: str, other: str) -> None:
        """Say that two names may share memory."""
        self.parents[self.head(one)] = self.head(other)

    def note(self, line: BoundSymbol) -> None:
        """Take in what a line, through its aten operations, makes of memory that it is given."""
        for operation in line.at_level("aten"):
            for made in operation.outputs:
                for given in shared_inputs(operation):
                    self.join(made.name, given.name)


def shared_inputs(operation: BoundSymbol) -> Iterator[Proxy]:
    """The inputs whose memory the results of an operation may share; all of them where nothing is known."""
    if operation.fresh:
        return
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload):
        yield from operation.inputs
        return
    for place, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None:
            given = operation.args[place] if place < len(operation.args) else operation.kwargs.get(argument.name)
            yield from (leaf for leaf in leaves(given) if isinstance(leaf, Proxy))


def families(lines: Iterable[BoundSymbol], aliases: Iterable[Iterable[str]] = ()) -> Families:
    """The names of some lines by the memory that they may share; `aliases` are names that do from the beginning."""
    found = Families()
    for first, *others in aliases:
        for other in others:
            found.join(first, other)
    for line in lines:
        found.note(line)
    return found


def written_families(trace: Trace) -> frozenset[str]:
    """Every name whose memory some line of the trace writes to, or may."""
    if not any(line.mutates for line in trace.bound_symbols):
        return frozenset()
    known = families(trace.bound_symbols, trace.aliases)
    written = {known.head(name) for line in trace.bound_symbols for name in line.mutates}
    names = {proxy.name for line in trace.bound_symbols for proxy in (*line.inputs, *line.outputs)}
    names |= {proxy.name for proxy in trace.inputs}
    return frozenset(name for name in names if known.head(name) in written)
