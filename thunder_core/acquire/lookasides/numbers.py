"""Functions of Python's that are given numbers which a trace does not know, or a tensor that is one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.numbers import KINDS, PREDICATES, SymbolicNumber

CONVERSIONS = (float, int)


@lookaside(*CONVERSIONS)
def convert(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """`float(tensor)` is the number that the tensor holds, which the trace need not know."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].numel() == 1 and not args[0].is_complex():
        return lambda tensor: _converted(acquisition, function, tensor.item())
    return compute(acquisition, function, args, kwargs)


def _converted(acquisition: Any, function: Callable[..., Any], number: Any) -> Any:
    if isinstance(number, SymbolicNumber) and number.kind is not function:
        return acquisition.recorder.numbers.compute(function, (number,))
    return number if isinstance(number, SymbolicNumber) else function(number)


@lookaside(*(function for function in KINDS if function not in CONVERSIONS))
def compute(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A function of symbolic numbers is a bound symbol of the trace."""
    if kwargs or len(args) != 1 or not isinstance(args[0], SymbolicNumber):
        return None
    return lambda number: _converted(acquisition, function, number)


@lookaside(*PREDICATES)
def decide(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Answer a question about a number from outside; the answer is checked at each call."""
    if kwargs or not any(isinstance(arg, SymbolicNumber) for arg in args):
        return None
    return lambda *numbers: acquisition.recorder.numbers.decide(function, numbers)
