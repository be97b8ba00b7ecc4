"""Python functions of symbolic numbers, and conversions of one-element tensors to numbers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.lookasides.state.storages import guard_size
from thunder_core.frontend.acquire.run.sequence_operations import is_unread
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import PREDICATES, RESULT_CLASSES, SymbolicInteger, SymbolicNumber

CONVERSIONS = (float, int)
LENGTHS = (torch.Tensor, torch.nn.Parameter, FakeTensor)  # classes without their own Python code for `len`
# PyTorch's own methods, which a subclass may override.
CONVERSIONS_OF_TENSOR: dict[Any, Any] = {float: torch.Tensor.__float__, int: torch.Tensor.__int__}
LEN_OF_TENSOR = torch.Tensor.__len__


@lookaside_of_each(*CONVERSIONS)
def convert(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record `float(tensor)` or `int(tensor)` as a symbolic number, whose value is not read at tracing."""
    if len(args) != 1 or not issubclass(type(args[0]), torch.Tensor):
        return compute(function, run, *args, **kwargs)
    converts_itself = getattr(type(args[0]), f"__{function.__name__}__") is not CONVERSIONS_OF_TENSOR[function]
    if converts_itself or args[0].numel() != 1 or args[0].is_complex():
        return NOT_TAKEN
    return _convert(run, function, args[0].item())


def _convert(run: TracedRun, function: Callable[..., Any], number: object) -> Any:
    if isinstance(number, SymbolicNumber) and number.kind is not function:
        return run.recorder.numbers.compute(function, (number,))
    return number if isinstance(number, SymbolicNumber) else function(number)


@lookaside_of_each(*(function for function in RESULT_CLASSES if function not in CONVERSIONS))
def compute(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record a function of symbolic numbers as a bound symbol."""
    is_of_number = not kwargs and len(args) == 1 and issubclass(type(args[0]), SymbolicNumber)
    return _convert(run, function, args[0]) if is_of_number else NOT_TAKEN


@lookaside_of_each(*PREDICATES)
def decide(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> bool | NotTaken:
    """Return the result of a predicate, such as `math.isnan`, on a symbolic number. Each call checks the result."""
    if kwargs or not any(isinstance(arg, SymbolicNumber) for arg in args):
        return NOT_TAKEN
    return run.recorder.numbers.decide(function, args)


@lookaside(operator.index)
def index(run: TracedRun, /, *args: Any) -> SymbolicInteger | NotTaken:
    """Return a symbolic integer unchanged, because it is already an integer to the program."""
    return args[0] if len(args) == 1 and isinstance(args[0], SymbolicInteger) else NOT_TAKEN


@lookaside(math.prod)
def product(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Return the product of symbolic numbers as a symbolic number."""
    if len(args) != 1 or type(args[0]) not in (tuple, list, torch.Size) or kwargs.keys() - {"start"}:
        return NOT_TAKEN
    if not any(isinstance(number, SymbolicNumber) for number in args[0]):
        return NOT_TAKEN
    return functools.reduce(operator.mul, args[0], kwargs.get("start", 1))


@lookaside(len)
def length(run: TracedRun, /, *args: Any) -> Any:
    """Return the length of a tensor as its first size, and of a sequence of symbolic length as an expression."""
    if len(args) == 1 and is_unread(args[0]):
        return args[0].length()
    if len(args) == 1 and issubclass(type(args[0]), torch._C.StorageBase):
        guard_size(run, args[0])
    if run.recorder.sizes is None or len(args) != 1 or type(args[0]) not in LENGTHS or not args[0].dim():
        return NOT_TAKEN
    if torch.Tensor.__len__ is not LEN_OF_TENSOR:
        return NOT_TAKEN
    return run.recorder.function(torch.Tensor.size, (args[0], 0), {})
