"""Calls that draw random numbers from elsewhere than PyTorch, as prologues make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.tree import leaves


@dataclass(frozen=True, eq=False)
class Draw:
    """A call that draws: of a method of a generator, which is the `owner`, or of a function.

    The owner is a path, or the name of a generator of the process; arguments are paths, constants and containers.
    """

    owner: Path | str | None
    how: str
    called: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    number: int

    def __str__(self) -> str:
        return f"draw {self.number} ({self.name})"

    @property
    def name(self) -> str:
        """The name of what is called."""
        called = self.called.value if isinstance(self.called, Kept) else self.called
        return called if isinstance(called, str) else str(getattr(called, "__name__", "draw"))

    @property
    def sources(self) -> tuple[Path, ...]:
        """The paths that the call takes."""
        operands = leaves((self.owner, self.args, dict(self.kwargs)))
        return tuple(operand for operand in operands if isinstance(operand, Path))


@dataclass(frozen=True, eq=False)
class Kept:
    """A constant of a prologue: an argument that the program made of nothing that differs from call to call."""

    value: Any
