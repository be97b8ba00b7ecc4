"""One call of a torch function while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_core.ir.symbol import BoundSymbol


@dataclass
class Call:
    """One torch function while it runs: the aten operations seen so far and what they do.

    `written`: the storages that it writes to; `random`: it draws random numbers; `opaque`: it uses tensors that have
    no name; `idle`: it sets a state to what the state already is; `reshapes`: it changes a tensor's metadata;
    `valued`: what it gives depends on the values of tensors.
    """

    subsymbols: list[BoundSymbol] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    random: bool = False
    opaque: bool = False
    idle: bool = False
    reshapes: bool = False
    valued: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether calls with the same signature do the same."""
        return not (self.written or self.random or self.opaque or self.valued)
