"""Classes: a tensor that the program computes and a number that a trace does not know are what they are in eager."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText

CLASSES: dict[type, type] = {FakeTensor: torch.Tensor, SymbolicText: str}  # of what stands in, what it shows


@lookaside(isinstance)
def is_instance(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A symbolic number is one of Python's to the program and one of PyTorch's to PyTorch; a tensor is no fake."""
    if len(args) != 2 or kwargs:
        return None
    value, classes = args
    if isinstance(value, SymbolicNumber):
        return lambda number, classes: isinstance(number, classes) or isinstance(number.kind(), classes)
    if type(value) is FakeTensor and any(one is FakeTensor for one in _alternatives(classes)):
        return lambda tensor, classes: any(isinstance(tensor, one) for one in _eager(classes))
    return None


@lookaside(type)
def class_of(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """The class of what stands in for a number or a tensor is that of what it stands for."""
    if len(args) != 1:
        return None
    shown = shown_class(args[0])
    return None if shown is None else lambda value: shown


def shown_class(value: Any) -> type | None:
    """The class that a stand-in shows to the program; None for any other object, which shows its own."""
    if isinstance(value, SymbolicNumber):
        kind: type = value.kind
        return kind
    return CLASSES.get(type(value))


def _alternatives(classes: Any) -> Iterator[Any]:
    """The classes that `isinstance` is asked for, in tuples and unions."""
    if not isinstance(classes, tuple | types.UnionType):
        yield classes
        return
    for part in classes.__args__ if isinstance(classes, types.UnionType) else classes:
        yield from _alternatives(part)


def _eager(classes: Any) -> Iterator[Any]:
    return (one for one in _alternatives(classes) if one is not FakeTensor)
