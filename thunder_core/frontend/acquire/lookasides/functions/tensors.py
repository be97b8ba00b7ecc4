"""Tensors of classes other than torch.Tensor that the program makes: parameters, buffers and subclasses."""

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
    """Make a tensor of a class that shares memory with `data`, and is a leaf of autograd. `nn.Parameter` does this."""

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
    """Return a tensor as an instance of another class."""
    return partial(alias_as, acquisition)


def alias_as(acquisition: TracedRun, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """Return an alias of a tensor, which autograd follows, as an instance of a class."""
    return cast(acquisition, record(acquisition, ALIAS, tensor), kind)


@lookaside(NEW)
def make_tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Make a plain tensor for `torch.Tensor.__new__` of a subclass, and return it as an instance of the subclass."""
    if not args or not is_subclass(args[0]):
        return None

    def run(kind: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cast(acquisition, acquisition.machine.natively(torch.Tensor, args, kwargs), kind)

    return run


@lookaside(DEFAULT)
def default_function(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Run the operation for `super().__torch_function__` of a subclass, and return instances of the subclass."""

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
    """Return a tensor on the memory of an array: an input for an array from outside, otherwise a constant."""
    return partial(tensor_of_array, acquisition) if len(args) == 1 and not kwargs else None


@lookaside(torch.as_tensor, torch.asarray)
def as_tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return a tensor that `torch.as_tensor` makes of an outside array as an input, with the given dtype and device."""
    if not args or acquisition.outside.path_of(args[0]) is None or not is_numeric_array(args[0]):
        return None
    return lambda array, *rest, **kwargs: function(tensor_of_array(acquisition, array), *rest, **kwargs)


@lookaside(torch.tensor)
def tensor(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Copy an array from outside, or a random array, by copying the tensor that is an input.

    A tensor of an empty list is a tensor of zeros without elements, which is an operation that regions accept.
    """
    is_of_nothing = bool(args) and type(args[0]) in (list, tuple) and not args[0]
    if is_of_nothing and len(args) == 1 and acquisition.outside.path_of(args[0]) is None:
        return lambda numbers, **options: torch.zeros(0, **options)
    is_outside_array = args and acquisition.outside.path_of(args[0]) is not None and is_numeric_array(args[0])
    if not is_outside_array or len(args) > 1 or kwargs.keys() - {"dtype", "device", "requires_grad"}:
        return None

    def run(array: Any, requires_grad: bool = False, **options: Any) -> torch.Tensor:
        copied = torch.as_tensor(tensor_of_array(acquisition, array), **options).clone()
        return copied.requires_grad_() if requires_grad else copied

    return run


def is_numeric_array(value: Any) -> bool:
    """Whether torch.from_numpy accepts a value."""
    return is_of(type(value), "numpy.ndarray") and value.dtype.kind in "biufc" and value.dtype.isnative


def tensor_of_array(acquisition: TracedRun, array: Any) -> torch.Tensor:
    """Return `torch.from_numpy` of an array: an input with the array's path, or a constant that each call copies."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = torch.from_numpy(array)
    path = acquisition.outside.path_of(array)
    if path is None:
        return record(acquisition, torch.clone, real)
    acquisition.outside.read(path.tensor(real), real)
    return real


def maker_of_tensors(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """Return the replacement for calling a subclass with torch.Tensor's `__new__`, or for a bound `as_subclass`."""
    if is_constructed_natively(function):
        return partial(construct, acquisition, function)
    if type(function) is BuiltinMethodType and function.__name__ == AS_SUBCLASS.__name__:
        owner: Any = function.__self__
        return partial(alias_as, acquisition, owner)
    return None


def construct(acquisition: TracedRun, kind: type, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call a subclass: make a new tensor, and run the class's own `__init__` if it has one."""
    tensor: torch.Tensor = acquisition.machine.invoke(NEW, (kind, *args), kwargs)
    if type(type_lookup(kind, "__init__")) is FunctionType:
        initialize(acquisition.machine, tensor, args, kwargs)
    return tensor


def is_constructed_natively(kind: Any) -> bool:
    """Whether a callable is a subclass whose instances C code makes."""
    return isinstance(kind, type) and is_subclass(kind) and type_lookup(kind, "__new__") is NEW


def is_subclass(kind: type) -> bool:
    """Whether a class is a proper subclass of Tensor."""
    return issubclass(kind, torch.Tensor) and kind is not torch.Tensor


def cast(acquisition: TracedRun, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """Return the tensor as an instance of a class."""
    with torch._C.DisableTorchFunction():
        converted: torch.Tensor = acquisition.recorder.subclasses.cast(tensor, kind)
    return converted


def record(acquisition: TracedRun, function: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor:
    """Run a function of a tensor as a bound symbol of the trace, regardless of the tensor's class."""
    with torch._C.DisableTorchFunction():
        recorded: torch.Tensor = acquisition.recorder.function(function, (tensor,), {})
    return recorded
