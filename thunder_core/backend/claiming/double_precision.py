"""Evaluation in float64: bound symbols on floating-point values in double precision, even if they name other dtypes."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch

from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

NARROWER_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
CAST_METHODS = frozenset({"float", "half", "bfloat16"})  # tensor methods whose name is a dtype


def in_float64(value: object) -> Any:
    """Return a floating-point tensor in float64; other values unchanged."""
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def evaluate_in_double(bsyms: Iterable[BoundSymbol], values: MutableMapping[str, Any]) -> None:
    """Run bound symbols like `evaluate`, with float64 in place of any narrower floating-point dtype.

    The floating-point tensors among `values` must be in float64. Errors of the calls are not caught: some operations do
    not support float64, and some programs check dtypes.
    """
    with default_dtype(torch.float64):
        evaluate(bsyms, values, call_in_double)


def result_in_double(bsym: BoundSymbol, name: str, values: MutableMapping[str, Any]) -> torch.Tensor | None:
    """Return the named result of a bound symbol in float64; None for an operation that does not support float64.

    The floating-point tensors among `values` must be in float64.
    """
    try:
        evaluate_in_double((bsym,), values)
    except (RuntimeError, TypeError, ValueError):
        return None
    result = values[name]
    return result if isinstance(result, torch.Tensor) else None


def call_in_double(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a bound symbol's function without its casts to narrower floating-point dtypes."""
    if bsym.symbol.short_name in CAST_METHODS and len(args) == 1 and not kwargs:
        result = args[0].to(torch.float64)
    else:
        args, kwargs = replace_leaves((args, kwargs), widen_dtype)
        result = replace_leaves(bsym.symbol.target(*args, **kwargs), in_float64)
    is_cast_to_itself = isinstance(result, torch.Tensor) and result is args[0] if args else False
    return result.view_as(result) if is_cast_to_itself and bsym.defines else result


def widen_dtype(leaf: object) -> Any:
    """Return float64 for a narrower floating-point dtype; other leaves unchanged."""
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROWER_DTYPES else leaf
