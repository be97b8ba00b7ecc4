"""Rematerialization: the choice of tensors that the forward saves for the backward, and of tensors that are recomputed.

The choice is a minimum cut (Ford and Fulkerson, 1956) of the forward between its inputs and the tensors that the
backward reads: the tensors on the cut are saved, the tensors after it are recomputed. Capacities are bytes. Only
operations that are cheap compared with the memory of their results are recomputed. In a block (a checkpointed
function), all operations are recomputed, except those whose results are read outside the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.parallel.operators import OPERATORS
from thunder_core.foundation import plugins
from thunder_core.passes.autodiff.recomputation.recompute_units import Unit, Units, get_state, set_state, units_of
from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves

UNBOUNDED_CAPACITY = 1 << 30
# Imported at its first use, because SciPy is slow to import.
MIN_CUT = "thunder_core.passes.autodiff.recomputation.min_cut:sink_side_of_min_cut"
CHEAP_OPERATIONS = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "_to_copy", "clone", "cat", "stack", "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "arange",
        "scalar_tensor", "where", "masked_fill", "constant_pad_nd", "_softmax", "_log_softmax", "select_scatter",
        "slice_scatter", "_unsafe_view", "roll", "flip", "tril", "triu", "repeat", "copy",
    )
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rematerialized:
    """A forward that returns `saved` after its results, and the recompute units of the other values.

    `states` has, by the index of each recomputed unit that draws random numbers, the generator's state before the unit.
    """

    forward: Trace
    saved: tuple[TensorProxy, ...]
    units: Units
    states: Mapping[int, TensorProxy] = field(default_factory=dict)


def rematerialize(forward: Trace, needed: Sequence[TensorProxy], results: int, *, cheap: bool) -> Rematerialized:
    """Return the forward that saves the fewest bytes from which all tensors of `needed` can be computed.

    The first `results` outputs of the forward are the results of the computation. Operations in a block are always
    recomputed; other operations are recomputed if `cheap` is set and they are cheap.
    """
    units = units_of(forward)
    to_save = _tensors_to_save(forward, units, needed, results, cheap=cheap)
    recomputed = _recomputed_units(units, needed, {proxy.name for proxy in to_save})
    used_names = {p.name for bsym in forward.bound_symbols for p in bsym.outputs} | {p.name for p in forward.inputs}
    names = (name for number in itertools.count() if (name := f"random_state_{number}") not in used_names)
    bsyms = list(forward.bound_symbols)
    states: dict[int, TensorProxy] = {}
    for unit in sorted(filter(lambda unit: unit.is_random, recomputed), key=lambda unit: -unit.index):
        bsym = get_state(next(names), unit.device)
        states[unit.index] = bsym.output
        bsyms.insert(unit.index, replace(bsym, source=unit.bsyms[0].source, module=unit.bsyms[0].module))
    saved = (*to_save, *states.values())
    output = (*forward.output[:results], *saved)
    return Rematerialized(forward.having(bsyms, made_by=forward.made_by, output=output), saved, units, states)


def _tensors_to_save(
    forward: Trace, units: Units, needed: Sequence[TensorProxy], results: int, *, cheap: bool
) -> tuple[TensorProxy, ...]:
    """Return the tensors to save: those with the fewest bytes from which all of `needed` can be computed."""
    graph = _Graph()
    for proxy in forward.inputs:
        graph.add(proxy, free=True)
    escaping = _escaping_names(forward, units, results)
    gathered: set[str] = set()
    for unit in units:
        for proxy in unit.inputs.values():
            graph.add(proxy, free=True)  # a constant; all other names were added with their bound symbols
        is_gathered = _is_gathered_again(unit, gathered)
        gathered.update(unit.defines if is_gathered else ())
        is_recomputable = is_gathered or _is_recomputable_unit(unit, cheap=cheap)
        for name, proxy in unit.defines.items():
            is_inner = is_recomputable and unit.block >= 0 and name not in escaping
            is_recomputed = is_recomputable and (unit.block < 0 or is_inner)
            graph.add(proxy, free=False, available=not is_recomputed, may_be_saved=not is_inner)
            if is_recomputed:
                graph.connect(unit.inputs, name)
    for proxy in needed:
        graph.add(proxy, free=True)
        graph.need(proxy.name)
    cut = graph.cut()
    return tuple(proxy for name, proxy in graph.values.items() if name in cut and isinstance(proxy, TensorProxy))


def _is_recomputable_unit(unit: Unit, *, cheap: bool) -> bool:
    """Whether a unit may be recomputed: in a block, always; elsewhere, if it is cheap and `cheap` is set."""
    if unit.is_not_recomputable:
        return False
    return unit.block >= 0 or (cheap and all(map(is_recomputable, unit.bsyms)))


def _is_gathered_again(unit: Unit, gathered: Container[str]) -> bool:
    """Whether a unit gathers a parameter that is resharded after the forward, or computes a view or cast of one.

    The backward runs such a unit again, because saving its result would keep the whole parameter.
    """
    if unit.is_not_recomputable:
        return False
    if all(map(gathers_again, unit.bsyms)):
        return True
    reads_gathered = bool(unit.inputs) and all(name in gathered for name in unit.inputs)
    return reads_gathered and all(map(is_recomputable, unit.bsyms))


def _escaping_names(forward: Trace, units: Units, results: int) -> set[str]:
    """Return the names that are returned, or that are made in one block and read outside of the block."""
    escaping = {leaf.name for leaf in leaves(forward.output[:results]) if isinstance(leaf, Proxy)}
    for unit in units:
        for name in unit.inputs:
            maker = units.makers.get(name)
            if maker is not None and maker.block != unit.block:
                escaping.add(name)
    return escaping


def _recomputed_units(units: Units, needed: Iterable[Proxy], saved: set[str]) -> list[Unit]:
    """Return the units that are recomputed to make `needed` from the saved tensors, in order."""
    return _units_to_run(units, [proxy.name for proxy in needed], set(saved))


def _units_to_run(units: Units, names: Iterable[str], available: set[str]) -> list[Unit]:
    """Return the units that make these names from available names, in order; adds their results to `available`."""
    units_by_index: dict[int, Unit] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        unit = units.makers.get(name)
        if name in available or unit is None:
            continue
        available.update(unit.defines)
        units_by_index[unit.index] = unit
        waiting += unit.inputs
    return [units_by_index[index] for index in sorted(units_by_index)]


def gathers_again(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol gathers a parameter that the backward gathers again instead of saving it."""
    packet = OPERATORS.gather_parameter
    return bsym.symbol.target in (packet, packet.default) and bool(bsym.args[3])


def is_recomputable(bsym: BoundSymbol) -> bool:
    """Whether running a bound symbol again is allowed, and cheaper than saving its results."""
    operations = bsym.operations
    if bsym.has_effect or bsym.executor or not operations:
        return False
    return all(_is_cheap(operation) for operation in operations)


def _is_cheap(operation: BoundSymbol) -> bool:
    """Whether an operation is a view, a pointwise operation or in `CHEAP_OPERATIONS`, without writes and randomness."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    computes_little = torch.Tag.pointwise in target.tags or operation.symbol.name.rpartition(".")[0] in CHEAP_OPERATIONS
    return (computes_little and torch.Tag.nondeterministic_seeded not in target.tags) or is_view(operation)


@dataclass
class _Graph:
    """The values of a forward as a flow network.

    Each value is an edge, whose capacity is the cost of saving the value.
    """

    values: dict[str, Proxy] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _edges: list[tuple[int, int, int]] = field(default_factory=list)

    SOURCE, SINK = 0, 1

    def add(self, proxy: Proxy, *, free: bool, available: bool = True, may_be_saved: bool = True) -> None:
        """Add a value.

        An `available` value can always be saved, because it is not recomputed. Saving a `free` value costs almost
        nothing. A value that may not be saved is never cut.
        """
        if proxy.name in self._numbers:
            return
        self.values[proxy.name] = proxy
        number = self._numbers[proxy.name] = 2 + 2 * len(self._numbers)
        if available:
            self._edges.append((self.SOURCE, number, -1))
        size = proxy.bytes if isinstance(proxy, TensorProxy) and not free else 0
        self._edges.append((number, number + 1, 1 + size if may_be_saved else -1))

    def connect(self, sources: Iterable[str], name: str) -> None:
        """Record that a value can be computed from the values `sources`."""
        self._edges += [(self._numbers[source] + 1, self._numbers[name], -1) for source in sources]

    def need(self, name: str) -> None:
        """Record that the backward reads a value."""
        self._edges.append((self._numbers[name] + 1, self.SINK, -1))

    def cut(self) -> set[str]:
        """Return the values to save: the minimum cut that is nearest to the sink, so that few values are recomputed."""
        size = 2 + 2 * len(self._numbers)
        total = sum(capacity for *_, capacity in self._edges if capacity > 0)
        bytes_per_capacity = max(1, -(-total // (UNBOUNDED_CAPACITY // 2)))
        scaled = [
            (*ends, UNBOUNDED_CAPACITY if bytes_ < 0 else max(1, bytes_ // bytes_per_capacity))
            for *ends, bytes_ in self._edges
        ]
        sink_side_of_min_cut: Any = plugins.import_object(MIN_CUT)
        sink_side: set[int] = sink_side_of_min_cut(
            scaled, size, self.SOURCE, self.SINK, max_capacity=UNBOUNDED_CAPACITY
        )
        return {name for name, node in self._numbers.items() if node not in sink_side and node + 1 in sink_side}


def with_recomputation(backward: Trace, rematerialized: Rematerialized) -> Trace:
    """Return a backward that recomputes each unsaved tensor before its first read, or before it is returned."""
    available = {proxy.name for proxy in backward.inputs}
    renamed = {proxy.name: replace(proxy, name=f"{proxy.name}_again") for proxy in rematerialized.saved}
    bsyms: list[BoundSymbol] = []

    def recompute(needed: Iterable[Proxy]) -> None:
        missing = [proxy.name for proxy in needed if proxy.name not in available]
        for unit in _units_to_run(rematerialized.units, missing, available) if missing else ():
            bsyms.extend(_recomputed_bsyms(unit, renamed, rematerialized.states.get(unit.index)))

    for bsym in backward.bound_symbols:
        recompute(bsym.inputs)
        available.update(proxy.name for proxy in bsym.defines)
        bsyms.append(bsym)
    recompute(backward.outputs)
    return backward.having(bsyms, made_by=backward.made_by)


def _recomputed_bsyms(unit: Unit, renamed: Mapping[str, Proxy], state: TensorProxy | None) -> Iterator[BoundSymbol]:
    """Yield the bound symbols of a unit, with saved tensors renamed, and with the original random state."""
    saved = {name: renamed[name] for name in unit.defines if name in renamed}
    bsyms = [bsym.rename(saved) if saved else bsym for bsym in unit.bsyms]
    if state is None:
        yield from bsyms
        return
    current = get_state(f"{state.name}_now", unit.device)
    for bsym in (current, set_state(state, unit.device), *bsyms, set_state(current.output, unit.device)):
        yield replace(bsym, source=unit.bsyms[0].source, module=unit.bsyms[0].module)
