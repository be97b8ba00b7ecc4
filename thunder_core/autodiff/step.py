"""One line in the sweep that differentiates a trace: its derivation, in its own names, which equal lines share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from thunder_core.analysis.aliasing import is_view
from thunder_core.autodiff.vjp import Derivation, Pull
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves
from thunder_core.lower.region import line_key


@dataclass(eq=False)
class Step:
    """One line in the sweep: its derivation in the names of the trace, or None where autograd follows nothing.

    `reads` are the names that its backward reads.
    """

    line: BoundSymbol
    derivation: Derivation | None = None
    names: dict[str, Proxy] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)

    @property
    def results(self) -> tuple[Proxy, ...]:
        """What gradients come in for."""
        return () if self.derivation is None else tuple(self.names[p.name] for p in self.derivation.results)

    @property
    def wanted(self) -> tuple[Proxy, ...]:
        """What gradients go out for."""
        return () if self.derivation is None else tuple(self.names[p.name] for p in self.derivation.wanted)

    @property
    def lines(self) -> tuple[BoundSymbol, ...]:
        """The forward as aten operations, the tensors on the way by their names in the trace."""
        assert self.derivation is not None
        return tuple(self.placed(line, self.names) for line in self.derivation.lines)

    def placed(self, line: BoundSymbol, names: Mapping[str, Proxy], derives: BoundSymbol | None = None) -> BoundSymbol:
        """An operation of the derivation in the names of the trace, at the place of the line."""
        placed = line.renamed(names, at=(self.line.source, self.line.module))
        return replace(placed, executor=self.line.executor, derives=derives)


def same_derivative(line: BoundSymbol, followed: set[str]) -> Hashable:
    """Equal for lines that share a derivation."""
    numbers: dict[str, int] = {}
    given = [leaf.name for leaf in leaves((line.args, dict(line.kwargs))) if isinstance(leaf, Proxy)]
    same = tuple(numbers.setdefault(name, len(numbers)) for name in given)
    returned = tuple(numbers.get(proxy.name, -1) for proxy in line.outputs)
    return (line_key(line), same, returned, tuple(name in followed for name in numbers))


def matched(old: BoundSymbol, new: BoundSymbol) -> dict[str, Proxy]:
    """For each name of a line the proxy at the same place of an equal one."""
    pairs = zip(
        leaves((old.args, dict(old.kwargs), old.output)), leaves((new.args, dict(new.kwargs), new.output)), strict=True
    )
    return {one.name: other for one, other in pairs if isinstance(one, Proxy)}


def recomputed(derivation: Derivation, pull: Pull) -> list[BoundSymbol]:
    """The operations of the forward that the backward does again: views of what the line reads and returns."""
    outside = {proxy.name for proxy in (*derivation.line.inputs, *derivation.line.outputs)}
    makers = {proxy.name: line for line in derivation.lines for proxy in line.defines}
    found: dict[int, BoundSymbol] = {}

    def reach(name: str) -> bool:
        """Whether views alone lead to a tensor; its lines are then noted, the first one first."""
        if name in outside:
            return True
        line = makers.get(name)
        if line is None or not is_view(line) or not all(reach(proxy.name) for proxy in line.inputs):
            return False
        found[id(line)] = line
        return True

    for name in pull.reads:
        kept = dict(found)
        if not reach(name):
            found = kept
    return list(found.values())
