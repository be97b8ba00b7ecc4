"""The state of a torch function call while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves


@dataclass
class RecordedCall:
    """A torch function call while it runs: its aten operations so far, and their effects.

    - `written`: the storages that it writes to;
    - `random`: whether it draws random numbers;
    - `opaque`: whether its aten operations do not represent it, so that it is recorded without subsymbols;
    - `sets_present_value`: whether it sets a state to the value that the state already has;
    - `reshapes`: whether it changes a tensor's metadata in place;
    - `depends_on_values`: whether its result depends on the values of tensors;
    - `is_constant`: whether its result is a number that is the same at each call, so that the call is not recorded;
    - `has_counted_size`: whether a size of its result is a count that the prologue computes;
    - `uses_process_group`: whether it calls an operator of a process group;
    - `before`: the earlier proxies, by tensor identity, of tensors whose metadata it changed in place.
    """

    subsymbols: list[BoundSymbol] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    random: bool = False
    opaque: bool = False
    sets_present_value: bool = False
    reshapes: bool = False
    depends_on_values: bool = False
    is_constant: bool = False
    has_counted_size: bool = False
    uses_process_group: bool = False
    before: dict[int, TensorProxy] = field(default_factory=dict)

    @property
    def is_repeatable(self) -> bool:
        """Whether calls with the same signature give the same result."""
        return not (self.written or self.random or self.opaque or self.depends_on_values or self.has_counted_size)

    def has_made(self, value: object) -> bool:
        """Whether an aten operation of this call returned a tensor, so that no code outside the call refers to the
        tensor yet.
        """
        return isinstance(value, Proxy) and any(value in part.defines for part in self.subsymbols)


def with_earlier_names(tree: object, before: Mapping[str, TensorProxy]) -> Any:
    """Return nested proxies with each proxy replaced by the earlier proxy that `before` has for its name."""
    if not before:
        return tree
    return replace_leaves(tree, lambda leaf: before.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf)
