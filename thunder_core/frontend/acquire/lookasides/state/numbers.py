"""Python functions of numbers that are unknown in the trace, or of one-element tensors."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import PREDICATES, RESULT_CLASSES, SymbolicInteger, SymbolicNumber

CONVERSIONS = (float, int)
LENGTHS = (torch.Tensor, torch.nn.Parameter, FakeTensor)  # classes without their own Python code for `len`


@lookaside(*CONVERSIONS)
def convert(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Record `float(tensor)` or `int(tensor)` as a number that the trace need not know."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].numel() == 1 and not args[0].is_complex():
        return lambda tensor: _converted(acquisition, function, tensor.item())
    return compute(acquisition, function, args, kwargs)


def _converted(acquisition: TracedRun, function: Callable[..., Any], number: Any) -> Any:
    if isinstance(number, SymbolicNumber) and number.kind is not function:
        return acquisition.recorder.numbers.compute(function, (number,))
    return number if isinstance(number, SymbolicNumber) else function(number)


@lookaside(*(function for function in RESULT_CLASSES if function not in CONVERSIONS))
def compute(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Record a function of symbolic numbers as a bound symbol."""
    if kwargs or len(args) != 1 or not isinstance(args[0], SymbolicNumber):
        return None
    return lambda number: _converted(acquisition, function, number)


@lookaside(*PREDICATES)
def decide(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Answer a question about a number from outside. Each call checks the answer."""
    if kwargs or not any(isinstance(arg, SymbolicNumber) for arg in args):
        return None
    return lambda *numbers: acquisition.recorder.numbers.decide(function, numbers)


@lookaside(operator.index)
def index(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return a symbolic integer unchanged, because it is already an integer to the program."""
    plain = len(args) == 1 and not kwargs and isinstance(args[0], SymbolicInteger)
    return (lambda number: number) if plain else None


@lookaside(math.prod)
def product(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return the product of symbolic numbers as a symbolic number."""
    if not args or type(args[0]) not in (tuple, list, torch.Size) or kwargs.keys() - {"start"}:
        return None
    if not any(isinstance(number, SymbolicNumber) for number in args[0]):
        return None
    return lambda numbers, *, start=1: functools.reduce(operator.mul, numbers, start)


@lookaside(len)
def length(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return the length of a tensor as its first size."""
    if acquisition.recorder.sizes is None or len(args) != 1 or kwargs or type(args[0]) not in LENGTHS:
        return None
    return (lambda tensor: acquisition.recorder.function(torch.Tensor.size, (tensor, 0), {})) if args[0].dim() else None
