"""Evaluation in float64: bound symbols on floating-point values in double precision, whatever dtypes they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

NARROWER = frozenset({torch.float32, torch.bfloat16, torch.float16})
CASTS = frozenset({"float", "half", "bfloat16"})  # methods of tensors that name a dtype by their own name


@contextmanager
def default_float64() -> Iterator[None]:
    """While this lasts, what operations make without a dtype is in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_float64(value: Any) -> Any:
    """A floating-point tensor in float64; other values as they are."""
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def evaluate_in_double(bsyms: Iterable[BoundSymbol], values: MutableMapping[str, Any]) -> None:
    """Run bound symbols as `evaluate` does, with float64 wherever they name a narrower floating-point dtype.

    The floating-point tensors among `values` are to be in float64. Raises what the calls raise: some operations take no
    float64, and some programs look at dtypes.
    """
    with default_float64():
        evaluate(bsyms, values, call_in_double)


def result_in_double(bsym: BoundSymbol, name: str, values: MutableMapping[str, Any]) -> torch.Tensor | None:
    """The result of that name of a bound symbol in float64; None for an operation that takes no float64.

    The floating-point tensors among `values` are to be in float64.
    """
    try:
        evaluate_in_double((bsym,), values)
    except (RuntimeError, TypeError, ValueError):
        return None
    result = values[name]
    return result if isinstance(result, torch.Tensor) else None


def call_in_double(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what a bound symbol means, without its casts to narrower floating-point dtypes."""
    if bsym.symbol.short_name in CASTS and len(args) == 1 and not kwargs:
        result = args[0].to(torch.float64)
    else:
        args, kwargs = replace_leaves((args, kwargs), widened_dtype)
        result = replace_leaves(bsym.symbol.target(*args, **kwargs), in_float64)
    is_cast_to_itself = isinstance(result, torch.Tensor) and result is args[0] if args else False
    return result.view_as(result) if is_cast_to_itself and bsym.defines else result


def widened_dtype(leaf: Any) -> Any:
    """Float64 for a narrower floating-point dtype; other leaves as they are."""
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROWER else leaf
