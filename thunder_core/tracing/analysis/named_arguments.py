"""The arguments of calls of PyTorch's operators by the names in the operators' schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of an operator (`OpOverload`) by schema names, including defaults."""
    declared = target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in declared), args, strict=False)), **kwargs}
