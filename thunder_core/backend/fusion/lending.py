"""Memory that a wrapper lends: values that a forward saves for its backward, and that stay where they are computed.

A wrapper such as a CUDA graph computes its results in memory of its own, which its next run overwrites. It returns
copies of them, except of results that only the backward reads: these are lent. The wrapper does not run again while a
tensor uses lent memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.ir.trace import Trace


@dataclass
class LentMemory:
    """The memory of a trace's values that wrappers lend.

    `saved` are the representatives of the memory that a wrapper may lend: a forward returns it for the backward alone.
    `lent` are the representatives of the memory that wrappers have lent.
    """

    aliasing: AliasSets
    saved: frozenset[str] = frozenset()
    lent: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, trace: Trace, aliasing: AliasSets) -> LentMemory:
        """Return the memory that the wrappers of a trace may lend, and the lent memory among its inputs."""
        head = aliasing.representative
        visible = {head(proxy.name) for proxy in (*trace.inputs, *trace.outputs) if proxy.name not in trace.saved}
        visible.update(map(head, trace.constants))
        return cls(aliasing, frozenset(map(head, trace.saved)) - visible, set(map(head, trace.lent)))

    def may_be_lent(self, name: str) -> bool:
        """Whether a wrapper may lend the memory of a tensor that it computes."""
        return self.aliasing.representative(name) in self.saved

    def is_lent(self, name: str) -> bool:
        """Whether a tensor is in lent memory."""
        return self.aliasing.representative(name) in self.lent

    def lend(self, names: Iterable[str]) -> None:
        """Note that a wrapper lends the memory of these tensors."""
        self.lent.update(map(self.aliasing.representative, names))

    def names(self, trace: Trace) -> frozenset[str]:
        """Return the names of a trace's saved tensors, and of its inputs, that are in lent memory."""
        return frozenset(name for name in (*trace.saved, *trace.lent) if self.is_lent(name))
