"""The arguments of calls of PyTorch's functions and operators by parameter names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thunder_core.tracing.ir.symbol import BoundSymbol


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of an operator (`OpOverload`) by schema names, including defaults."""
    declared = target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in declared), args, strict=False)), **kwargs}


def arguments_by_name(bsym: BoundSymbol, parameters: Iterable[str]) -> dict[str, Any] | None:
    """Return the given arguments by name, without defaults; None if the bound symbol has an unknown argument."""
    names = tuple(parameters)
    if len(bsym.args) > len(names) or bsym.kwargs.keys() - set(names):
        return None
    return {**dict(zip(names, bsym.args, strict=False)), **bsym.kwargs}
