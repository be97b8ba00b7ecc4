"""Rematerialization: which tensors that the backward reads are saved by the forward, and which are computed once more.

The choice is a minimum cut (Ford and Fulkerson, 1956) of the forward between what is there and what the backward
reads: the tensors on the cut are saved, what lies behind it is recomputed. Capacities are bytes. Only operations that
are cheap beside the memory that they would fill are recomputed; of a block (a checkpointed function) everything is, but
for what other bound symbols read of it.
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

UNBOUNDED = 1 << 30
MIN_CUT = "thunder_core.autodiff.min_cut:sink_side_of_min_cut"  # imported when it is needed: SciPy takes a while
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
    """A forward that returns `saved` behind its results, and all that a backward needs to recompute the rest.

    `states` has, for the place of each unit that draws random numbers again, the state that it starts from.
    """

    forward: Trace
    saved: tuple[TensorProxy, ...]
    units: Units
    states: Mapping[int, TensorProxy] = field(default_factory=dict)


def rematerialize(forward: Trace, needed: Sequence[TensorProxy], results: int, *, cheap: bool) -> Rematerialized:
    """The forward with the fewest bytes saved from which all that is needed can be computed.

    The first `results` outputs of the forward are its own. What lies in a block is recomputed whatever it costs, and
    with `cheap` what costs little elsewhere.
    """
    units = units_of(forward)
    chosen = _chosen(forward, units, needed, results, cheap=cheap)
    again = [unit for unit in _again(units, needed, {proxy.name for proxy in chosen}) if unit.random]
    taken = {p.name for bsym in forward.bound_symbols for p in bsym.outputs} | {p.name for p in forward.inputs}
    names = (name for number in itertools.count() if (name := f"random_state_{number}") not in taken)
    bsyms = list(forward.bound_symbols)
    states: dict[int, TensorProxy] = {}
    for unit in sorted(again, key=lambda unit: -unit.place):
        bsym = get_state(next(names), unit.device)
        states[unit.place] = bsym.output
        bsyms.insert(unit.place, replace(bsym, source=unit.bsyms[0].source, module=unit.bsyms[0].module))
    saved = (*chosen, *states.values())
    output = (*forward.output[:results], *saved)
    return Rematerialized(forward.having(bsyms, made_by=forward.made_by, output=output), saved, units, states)


def _chosen(
    forward: Trace, units: Units, needed: Sequence[TensorProxy], results: int, *, cheap: bool
) -> tuple[TensorProxy, ...]:
    """The tensors to save of a forward, in the fewest bytes, so that all that is needed can be computed."""
    graph = _Graph()
    for proxy in forward.inputs:
        graph.add(proxy, free=True)
    leaving = _leaving(forward, units, results)
    for unit in units:
        for proxy in unit.inputs.values():
            graph.add(proxy, free=True)  # a constant: what bound symbols make was added with them
        again = _is_recomputable_unit(unit, cheap=cheap)
        for name, proxy in unit.defines.items():
            inner = again and unit.block >= 0 and name not in leaving
            is_recomputed = again and (unit.block < 0 or inner)
            graph.add(proxy, free=False, always=not is_recomputed, saved=not inner)
            if is_recomputed:
                graph.connect(unit.inputs, name)
    for proxy in needed:
        graph.add(proxy, free=True)
        graph.want(proxy.name)
    chosen = graph.cut()
    return tuple(proxy for name, proxy in graph.values.items() if name in chosen and isinstance(proxy, TensorProxy))


def _is_recomputable_unit(unit: Unit, *, cheap: bool) -> bool:
    if unit.not_recomputable:
        return False
    return unit.block >= 0 or (cheap and all(is_recomputable(bsym) for bsym in unit.bsyms))


def _leaving(forward: Trace, units: Units, results: int) -> set[str]:
    """The names that are made in a block and read outside it, or returned."""
    leaving = {leaf.name for leaf in leaves(forward.output[:results]) if isinstance(leaf, Proxy)}
    for unit in units:
        for name in unit.inputs:
            maker = units.makers.get(name)
            if maker is not None and maker.block != unit.block:
                leaving.add(name)
    return leaving


def _again(units: Units, needed: Iterable[Proxy], saved: set[str]) -> list[Unit]:
    """The units that are run once more to make what is needed from what is saved, in their order."""
    return _missing(units, [proxy.name for proxy in needed], set(saved))


def _missing(units: Units, names: Iterable[str], known: set[str]) -> list[Unit]:
    """The units that lead from what is known to these names; what they make is known from then on."""
    missing_units: dict[int, Unit] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        unit = units.makers.get(name)
        if name in known or unit is None:
            continue
        known.update(unit.defines)
        missing_units[unit.place] = unit
        waiting += unit.inputs
    return [missing_units[place] for place in sorted(missing_units)]


def is_recomputable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol may be run a second time, for less than it costs to keep what it makes."""
    operations = bsym.operations
    if bsym.has_effect or bsym.executor or not operations:
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
        sink_side_of_min_cut: Any = plugins.imported(MIN_CUT)
        behind: set[int] = sink_side_of_min_cut(scaled, size, self.SOURCE, self.SINK, most=UNBOUNDED)
        return {name for name, at in self._numbers.items() if at not in behind and at + 1 in behind}


def with_recomputation(backward: Trace, done: Rematerialized) -> Trace:
    """A backward with the bound symbols of the forward that make what was not saved, before it is first read."""
    known = {proxy.name for proxy in backward.inputs}
    kept = {proxy.name: replace(proxy, name=f"{proxy.name}_again") for proxy in done.saved}
    bsyms: list[BoundSymbol] = []
    for bsym in backward.bound_symbols:
        missing = [proxy.name for proxy in bsym.inputs if proxy.name not in known]
        for unit in _missing(done.units, missing, known) if missing else ():
            bsyms += _again_lines(unit, kept, done.states.get(unit.place))
        known.update(proxy.name for proxy in bsym.defines)
        bsyms.append(bsym)
    return backward.having(bsyms, made_by=backward.made_by)


def _again_lines(unit: Unit, kept: Mapping[str, Proxy], state: TensorProxy | None) -> Iterator[BoundSymbol]:
    """The bound symbols of a unit, its saved tensors renamed; random numbers are drawn from the same state again."""
    twice = {name: kept[name] for name in unit.defines if name in kept}
    bsyms = [bsym.renamed(twice) if twice else bsym for bsym in unit.bsyms]
    if state is None:
        yield from bsyms
        return
    now = get_state(f"{state.name}_now", unit.device)
    for bsym in (now, set_state(state, unit.device), *bsyms, set_state(now.output, unit.device)):
        yield replace(bsym, source=unit.bsyms[0].source, module=unit.bsyms[0].module)
