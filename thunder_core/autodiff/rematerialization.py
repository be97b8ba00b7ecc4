"""Rematerialization: of what the backward reads, what is saved by the forward, and what is computed once more.

The choice is a minimum cut (Ford and Fulkerson, 1956) of the forward between what is there and what the backward
reads: the tensors on the cut are saved, what lies behind it is recomputed. Capacities are bytes. Only operations that
are cheap beside the memory that they would fill are recomputed; of a block (a checkpointed function) everything is, but
for what other lines read of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core import plugins
from thunder_core.analysis.aliasing import is_view
from thunder_core.autodiff.recompute_units import Unit, Units, get_state, set_state, units_of
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves
from thunder_core.lower.region import operations_of

UNBOUNDED = 1 << 30
BEHIND_CUT = "thunder_core.autodiff.min_cut:behind_cut"  # imported when it is needed: SciPy takes a while
CHEAP = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "_to_copy", "clone", "cat", "stack", "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "arange",
        "scalar_tensor", "where", "masked_fill", "constant_pad_nd", "_softmax", "_log_softmax", "select_scatter",
        "slice_scatter", "_unsafe_view", "roll", "flip", "tril", "triu", "repeat", "copy",
    )
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rematerialized:
    """A forward that returns `saved` behind its results, and what a backward needs to make the rest once more.

    `states` has, for the place of each unit that draws random numbers again, the state that it starts from.
    """

    forward: Trace
    saved: tuple[TensorProxy, ...]
    units: Units
    states: Mapping[int, TensorProxy] = field(default_factory=dict)


def rematerialize(forward: Trace, needed: Sequence[TensorProxy], results: int, *, cheap: bool) -> Rematerialized:
    """The forward with the fewest bytes saved that all that is needed can be computed from.

    The first `results` outputs of the forward are its own. What lies in a block is recomputed whatever it costs, and
    with `cheap` what costs little elsewhere.
    """
    units = units_of(forward)
    chosen = _chosen(forward, units, needed, results, cheap=cheap)
    again = [unit for unit in _again(units, needed, {proxy.name for proxy in chosen}) if unit.random]
    taken = {p.name for line in forward.bound_symbols for p in line.outputs} | {p.name for p in forward.inputs}
    names = (name for number in itertools.count() if (name := f"random_state_{number}") not in taken)
    lines = list(forward.bound_symbols)
    states: dict[int, TensorProxy] = {}
    for unit in sorted(again, key=lambda unit: -unit.place):
        line = get_state(next(names), unit.device)
        states[unit.place] = line.output
        lines.insert(unit.place, replace(line, source=unit.lines[0].source, module=unit.lines[0].module))
    saved = (*chosen, *states.values())
    output = (*forward.output[:results], *saved)
    return Rematerialized(forward.having(lines, made_by=forward.made_by, output=output), saved, units, states)


def _chosen(
    forward: Trace, units: Units, needed: Sequence[TensorProxy], results: int, *, cheap: bool
) -> tuple[TensorProxy, ...]:
    """What has to be saved of a forward so that all that is needed can be computed: the fewest bytes."""
    graph = _Graph()
    for proxy in forward.inputs:
        graph.add(proxy, free=True)
    leaving = _leaving(forward, units, results)
    for unit in units:
        for proxy in unit.inputs.values():
            graph.add(proxy, free=True)  # a constant: what lines make was added with them
        again = _can_be_again(unit, cheap=cheap)
        for name, proxy in unit.defines.items():
            inner = again and unit.block >= 0 and name not in leaving
            made = again and (unit.block < 0 or inner)
            graph.add(proxy, free=False, always=not made, saved=not inner)
            if made:
                graph.connect(unit.inputs, name)
    for proxy in needed:
        graph.add(proxy, free=True)
        graph.want(proxy.name)
    chosen = graph.cut()
    return tuple(proxy for name, proxy in graph.values.items() if name in chosen and isinstance(proxy, TensorProxy))


def _can_be_again(unit: Unit, *, cheap: bool) -> bool:
    if unit.fixed:
        return False
    return unit.block >= 0 or (cheap and all(is_recomputable(line) for line in unit.lines))


def _leaving(forward: Trace, units: Units, results: int) -> set[str]:
    """The names that are made in a block and read outside it, or returned."""
    found = {leaf.name for leaf in leaves(forward.output[:results]) if isinstance(leaf, Proxy)}
    for unit in units:
        for name in unit.inputs:
            maker = units.makers.get(name)
            if maker is not None and maker.block != unit.block:
                found.add(name)
    return found


def _again(units: Units, needed: Iterable[Proxy], saved: set[str]) -> list[Unit]:
    """The units that are run once more to make what is needed from what is saved, in their order."""
    return _missing(units, [proxy.name for proxy in needed], set(saved))


def _missing(units: Units, names: Iterable[str], known: set[str]) -> list[Unit]:
    """The units that lead from what is known to these names; what they make is known from then on."""
    found: dict[int, Unit] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        unit = units.makers.get(name)
        if name in known or unit is None:
            continue
        known.update(unit.defines)
        found[unit.place] = unit
        waiting += unit.inputs
    return [found[place] for place in sorted(found)]


def is_recomputable(line: BoundSymbol) -> bool:
    """Whether a line may be run a second time, for less than it costs to keep what it makes."""
    operations = operations_of(line)
    if line.has_effect or line.executor or not operations:
        return False
    return all(_is_cheap(operation) for operation in operations)


def _is_cheap(operation: BoundSymbol) -> bool:
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    known = torch.Tag.pointwise in target.tags or operation.symbol.name.rpartition(".")[0] in CHEAP
    return (known and torch.Tag.nondeterministic_seeded not in target.tags) or is_view(operation)


@dataclass
class _Graph:
    """The values of a forward as a network: each is an edge from its making to its being saved."""

    values: dict[str, Proxy] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _edges: list[tuple[int, int, int]] = field(default_factory=list)

    SOURCE, SINK = 0, 1

    def add(self, proxy: Proxy, *, free: bool, always: bool = True, saved: bool = True) -> None:
        """A value: what is `always` there can be saved whatever else is; saving what is `free` costs nothing much.

        One that is not to be `saved` has no price.
        """
        if proxy.name in self._numbers:
            return
        self.values[proxy.name] = proxy
        number = self._numbers[proxy.name] = 2 + 2 * len(self._numbers)
        if always:
            self._edges.append((self.SOURCE, number, -1))
        size = proxy.bytes if isinstance(proxy, TensorProxy) and not free else 0
        self._edges.append((number, number + 1, 1 + size if saved else -1))

    def connect(self, sources: Iterable[str], name: str) -> None:
        """A value can be computed from others."""
        self._edges += [(self._numbers[source] + 1, self._numbers[name], -1) for source in sources]

    def want(self, name: str) -> None:
        """The backward reads a value."""
        self._edges.append((self._numbers[name] + 1, self.SINK, -1))

    def cut(self) -> set[str]:
        """The values to save: of the cuts that cost least the last one, which leaves least to recompute."""
        size = 2 + 2 * len(self._numbers)
        total = sum(capacity for *_, capacity in self._edges if capacity > 0)
        unit = max(1, -(-total // (UNBOUNDED // 2)))
        scaled = [(*ends, UNBOUNDED if one < 0 else max(1, one // unit)) for *ends, one in self._edges]
        behind_cut: Any = plugins.imported(BEHIND_CUT)
        behind: set[int] = behind_cut(scaled, size, self.SOURCE, self.SINK, most=UNBOUNDED)
        return {name for name, at in self._numbers.items() if at not in behind and at + 1 in behind}


def recomputing(backward: Trace, done: Rematerialized) -> Trace:
    """A backward that reads what was not saved, with the lines of the forward that make it, before it is read first."""
    known = {proxy.name for proxy in backward.inputs}
    kept = {proxy.name: replace(proxy, name=f"{proxy.name}_again") for proxy in done.saved}
    lines: list[BoundSymbol] = []
    for line in backward.bound_symbols:
        missing = [proxy.name for proxy in line.inputs if proxy.name not in known]
        for unit in _missing(done.units, missing, known) if missing else ():
            lines += _again_lines(unit, kept, done.states.get(unit.place))
        known.update(proxy.name for proxy in line.defines)
        lines.append(line)
    return backward.having(lines, made_by=backward.made_by)


def _again_lines(unit: Unit, kept: Mapping[str, Proxy], state: TensorProxy | None) -> Iterator[BoundSymbol]:
    """The lines of a unit, what was saved of it under another name; the same random numbers, and then on as before."""
    twice = {name: kept[name] for name in unit.defines if name in kept}
    lines = [line.renamed(twice) if twice else line for line in unit.lines]
    if state is None:
        yield from lines
        return
    now = get_state(f"{state.name}_now", unit.device)
    for line in (now, set_state(state, unit.device), *lines, set_state(now.output, unit.device)):
        yield replace(line, source=unit.lines[0].source, module=unit.lines[0].module)
