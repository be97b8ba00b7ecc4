"""Raise a program's own errors, which depend on values of tensors, at the right position of the computation."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.tracing.library.output import tensor_to_print


def require(condition: torch.Tensor, kind: type[Exception], *parts: str | tuple[Any, ...]) -> None:
    """Raise an error of class `kind` unless a condition holds for all elements.

    The message is the concatenation of `parts`: a string, or a function with arguments: `(format, tensor, ".2f")`.
    """
    if not condition.all():
        raise kind(
            "".join(part if isinstance(part, str) else part[0](*map(with_tensors_to_print, part[1:])) for part in parts)
        )


def with_tensors_to_print(value: Any) -> Any:
    """Replace each nested tuple `(tensor_to_print, *arguments)` in a value by the result of this call."""
    if type(value) is tuple and value[:1] == (tensor_to_print,):
        return tensor_to_print(*value[1:])
    if type(value) in (tuple, list):
        return type(value)(map(with_tensors_to_print, value))
    return {key: with_tensors_to_print(item) for key, item in value.items()} if type(value) is dict else value


REQUIRE = f"{__name__}.{require.__name__}"  # the name of the symbol
