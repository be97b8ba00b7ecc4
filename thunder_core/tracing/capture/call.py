"""One call of a torch function while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves


@dataclass
class RecordedCall:
    """One torch function while it runs: the aten operations seen so far and what they do.

    `written`: the storages that it writes to; `random`: it draws random numbers; `opaque`: its aten operations do not
    stand for it, so that it is recorded without sub-symbols; `idle`: it sets a state to what the state already is;
    `reshapes`: it changes a tensor's metadata; `valued`: its result depends on the values of tensors; `before`: the
    earlier proxies, by identity, of tensors whose metadata it changed in place; `counted`: a size of its result is a
    count that the prologue computes; `uses_process_group`: it calls an operator of a process group.
    """

    subsymbols: list[BoundSymbol] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    random: bool = False
    opaque: bool = False
    idle: bool = False
    reshapes: bool = False
    valued: bool = False
    counted: bool = False
    uses_process_group: bool = False
    before: dict[int, TensorProxy] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        """Whether calls with the same signature do the same."""
        return not (self.written or self.random or self.opaque or self.valued or self.counted)

    def makes(self, value: object) -> bool:
        """Whether a tensor came into being in this call, so that nobody has it yet."""
        return isinstance(value, Proxy) and any(value in part.defines for part in self.subsymbols)


def named_before(tree: Any, before: Mapping[str, TensorProxy]) -> Any:
    """Return nested proxies with those in `before`, by their names now, replaced by the tensors' earlier proxies."""
    if not before:
        return tree
    return replace_leaves(tree, lambda leaf: before.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf)
