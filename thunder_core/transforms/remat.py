"""Rematerialization: of what the backward reads, what is saved by the forward, and what is computed once more.

The choice is a minimum cut (Ford and Fulkerson, 1956) of the forward between what is there and what the backward
reads: the tensors on the cut are saved, what lies behind it is recomputed. Capacities are bytes. Only operations that
are cheap beside the memory that they would fill are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core import plugins
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.aliases import written_families
from thunder_core.lower.cuts import is_view
from thunder_core.lower.region import operations_of

UNBOUNDED = 1 << 30
BEHIND_CUT = "thunder_core.transforms.flow:behind_cut"  # imported when it is needed: SciPy takes a while
CHEAP = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "_to_copy", "clone", "cat", "stack", "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "arange",
        "scalar_tensor", "where", "masked_fill", "constant_pad_nd", "_softmax", "_log_softmax", "select_scatter",
        "slice_scatter", "_unsafe_view", "roll", "flip", "tril", "triu", "repeat", "copy",
    )
)  # fmt: skip
SHRINKS = 4  # an operation that reads so many times as many elements as it makes is a reduction: its result is saved


def choose_saved(forward: Trace, needed: Sequence[TensorProxy]) -> tuple[TensorProxy, ...]:
    """What has to be saved of a forward so that all that is needed can be computed: the fewest bytes."""
    graph = _Graph()
    inputs = {proxy.name for proxy in forward.inputs}
    written = written_families(forward)
    for proxy in forward.inputs:
        graph.add(proxy, free=True, always=True)
    for line in forward.bound_symbols:
        for proxy in line.inputs:
            graph.add(proxy, free=proxy.name in inputs or proxy.name in forward.constants, always=True)
        again = is_recomputable(line) and not any(proxy.name in written for proxy in line.inputs)
        for proxy in line.defines:
            graph.add(proxy, free=False, always=not again)
            if again:
                graph.connect((one.name for one in line.inputs), proxy.name)
    for proxy in needed:
        graph.add(proxy, free=True, always=True)
        graph.want(proxy.name)
    chosen = graph.cut()
    return tuple(proxy for name, proxy in graph.values.items() if name in chosen and isinstance(proxy, TensorProxy))


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

    def add(self, proxy: Proxy, *, free: bool, always: bool) -> None:
        """A value: what is `always` there can be saved whatever else is; saving what is `free` costs nothing much."""
        if proxy.name in self._numbers:
            return
        self.values[proxy.name] = proxy
        number = self._numbers[proxy.name] = 2 + 2 * len(self._numbers)
        if always:
            self._edges.append((self.SOURCE, number, -1))
        size = proxy.bytes if isinstance(proxy, TensorProxy) and not free else 0
        self._edges.append((number, number + 1, 1 + size))

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


def recomputing(backward: Trace, forward: Sequence[BoundSymbol], saved: Sequence[TensorProxy]) -> Trace:
    """A backward that reads what was not saved, with the lines of the forward that make it, each before it is read."""
    makers = {proxy.name: line for line in forward for proxy in line.defines}
    known = {proxy.name for proxy in backward.inputs}
    kept = {proxy.name for proxy in saved}
    lines: list[BoundSymbol] = []

    def make(name: str) -> Iterator[BoundSymbol]:
        line = makers.get(name)
        if name in known or line is None:
            return
        known.update(proxy.name for proxy in line.defines)
        for proxy in line.inputs:
            yield from make(proxy.name)
        twice = {p.name: replace(p, name=f"{p.name}_again") for p in line.defines if p.name in kept}
        yield line.renamed(twice) if twice else line

    for line in backward.bound_symbols:
        for proxy in line.inputs:
            lines += make(proxy.name)
        known.update(proxy.name for proxy in line.defines)
        lines.append(line)
    return backward.having(lines, made_by=backward.made_by)
