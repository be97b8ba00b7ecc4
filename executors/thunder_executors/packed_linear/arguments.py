"""The arguments of a bound symbol by parameter name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder_core.tracing.ir.symbol import BoundSymbol


def arguments_by_name(bsym: BoundSymbol, parameters: Iterable[str]) -> dict[str, Any] | None:
    """Return the given arguments by name, without defaults; None if the bound symbol has an unknown argument."""
    names = tuple(parameters)
    if len(bsym.args) > len(names) or bsym.kwargs.keys() - set(names):
        return None
    return {**dict(zip(names, bsym.args, strict=False)), **bsym.kwargs}
