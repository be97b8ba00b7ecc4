"""Tensors of classes of their own that the program makes: parameters, buffers and subclasses of torch.Tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinMethodType, FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.reductions import is_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.calls import initialize
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.capture.subclasses import ALIAS, DEFAULT

NEW = torch.Tensor.__new__
AS_SUBCLASS = torch.Tensor.as_subclass


@lookaside(torch.Tensor._make_subclass)
def make_subclass(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """A tensor of another class on the memory of a given one, as `nn.Parameter` makes it, is a leaf of autograd."""

    def run(kind: type, data: torch.Tensor, require_grad: bool = False, **options: Any) -> torch.Tensor:
        detached = record(acquisition, torch.Tensor.detach, data)
        if require_grad:
            detached = record(acquisition, torch.Tensor.requires_grad_, detached)
        return cast(acquisition, detached, kind)

    return run


@lookaside(AS_SUBCLASS)
def as_subclass(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """A tensor as one of another class."""
    return partial(alias_as, acquisition)


def alias_as(acquisition: TracedRun, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """An alias of a tensor, which autograd follows, as one of a class."""
    return cast(acquisition, record(acquisition, ALIAS, tensor), kind)


@lookaside(NEW)
def make_tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """`torch.Tensor.__new__` for a subclass makes a plain tensor, which the program gets as one of that class."""
    if not args or not is_subclass(args[0]):
        return None

    def run(kind: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cast(acquisition, acquisition.machine.natively(torch.Tensor, args, kwargs), kind)

    return run


@lookaside(DEFAULT)
def default_function(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """`super().__torch_function__` of a subclass: the operation, and its results as of that class."""

    def run(kind: type, operation: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(kind, other) for other in kinds):
            return NotImplemented
        with torch._C.DisableTorchFunction():
            return acquisition.recorder.subclasses.default(operation, args, kwargs or {}, kind)

    return run


@lookaside(torch.from_numpy)
def from_numpy(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A tensor on the memory of an array from outside is an input; one of an array of the program's is a constant."""
    return partial(tensor_of_array, acquisition) if len(args) == 1 and not kwargs else None


@lookaside(torch.as_tensor, torch.asarray)
def as_tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A tensor that `torch.as_tensor` makes of an array is an input, in the dtype and on the device asked for."""
    if not args or acquisition.outside.path_of(args[0]) is None or not is_numeric_array(args[0]):
        return None
    return lambda array, *rest, **kwargs: function(tensor_of_array(acquisition, array), *rest, **kwargs)


@lookaside(torch.tensor)
def tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A copy of an array from outside, or of one that is drawn, is a copy of the tensor that is an input."""
    known = args and acquisition.outside.path_of(args[0]) is not None and is_numeric_array(args[0])
    if not known or len(args) > 1 or kwargs.keys() - {"dtype", "device", "requires_grad"}:
        return None

    def run(array: Any, requires_grad: bool = False, **options: Any) -> torch.Tensor:
        copied = torch.as_tensor(tensor_of_array(acquisition, array), **options).clone()
        return copied.requires_grad_() if requires_grad else copied

    return run


def is_numeric_array(value: Any) -> bool:
    """Whether torch.from_numpy takes a value."""
    return is_of(type(value), "numpy.ndarray") and value.dtype.kind in "biufc" and value.dtype.isnative


def tensor_of_array(acquisition: TracedRun, array: Any) -> torch.Tensor:
    """`torch.from_numpy`: reached by the array's path; without one, a constant that each call copies."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = torch.from_numpy(array)
    path = acquisition.outside.path_of(array)
    if path is None:
        return record(acquisition, torch.clone, real)
    acquisition.outside.read(path.tensor(real), real)
    return real


def maker_of_tensors(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """The function that makes a tensor in place of a subclass with torch.Tensor's `__new__`, or of `as_subclass`."""
    if is_constructed_natively(function):
        return partial(construct, acquisition, function)
    if type(function) is BuiltinMethodType and function.__name__ == AS_SUBCLASS.__name__:
        owner: Any = function.__self__
        return partial(alias_as, acquisition, owner)
    return None


def construct(acquisition: TracedRun, kind: type, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call a subclass: a new tensor, and the class's own `__init__` if it has one."""
    tensor: torch.Tensor = acquisition.machine.invoke(NEW, (kind, *args), kwargs)
    if type(type_lookup(kind, "__init__")) is FunctionType:
        initialize(acquisition.machine, tensor, args, kwargs)
    return tensor


def is_constructed_natively(kind: Any) -> bool:
    """Whether calling this is to make a tensor of a subclass by C code."""
    return isinstance(kind, type) and is_subclass(kind) and type_lookup(kind, "__new__") is NEW


def is_subclass(kind: type) -> bool:
    """Whether this is a subclass of Tensor, and not that class itself."""
    return issubclass(kind, torch.Tensor) and kind is not torch.Tensor


def cast(acquisition: TracedRun, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """The tensor as one of the class."""
    with torch._C.DisableTorchFunction():
        converted: torch.Tensor = acquisition.recorder.subclasses.cast(tensor, kind)
    return converted


def record(acquisition: TracedRun, function: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor:
    """Run a function of a tensor as a bound symbol of the trace, whatever the tensor's class says."""
    with torch._C.DisableTorchFunction():
        recorded: torch.Tensor = acquisition.recorder.function(function, (tensor,), {})
    return recorded
