"""Tensors of classes other than torch.Tensor that the program makes: parameters, buffers and subclasses."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType, FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.codegen.rebuilding import attributes_of_fakes
from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.lookasides.state.sequences import can_be_tensor, tensor_of
from thunder_core.frontend.acquire.outside.paths import leads_from_draw
from thunder_core.frontend.acquire.outside.reductions import derives_from
from thunder_core.frontend.acquire.run.drawn_arrays import is_drawn
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.calls import initialize
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.fakes.buffers import is_buffer
from thunder_core.tracing.capture.subclasses import ALIAS, DEFAULT
from thunder_core.tracing.capture.torch_facts.symbols import own_operation

NEW = torch.Tensor.__new__
AS_SUBCLASS = torch.Tensor.as_subclass
HIDDEN = {"volatile", "__cuda_array_interface__"}  # names that `dir` leaves out for tensors that are not on a GPU


@lookaside(torch.Tensor._make_subclass)
def make_subclass(
    run: TracedRun, /, kind: type, data: torch.Tensor, require_grad: bool = False, **options: Any
) -> torch.Tensor:
    """Make a tensor of a class that shares memory with `data`, and is a leaf of autograd. `nn.Parameter` does this."""
    detached = record(run, torch.Tensor.detach, data)
    if require_grad:
        detached = record(run, torch.Tensor.requires_grad_, detached)
    return cast(run, detached, kind)


@lookaside(AS_SUBCLASS)
def as_subclass(run: TracedRun, /, tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Return an alias of a tensor, which autograd tracks, as an instance of another class."""
    return cast(run, record(run, ALIAS, tensor), cls)


@lookaside(NEW)
def make_tensor(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Make a plain tensor for `torch.Tensor.__new__` of a subclass, and return it as an instance of the subclass."""
    if not args or not is_subclass(args[0]):
        return NOT_TAKEN
    return cast(run, run.machine.invoke(torch.Tensor, args[1:], kwargs), args[0])


@lookaside(handle_torch_function)
def pass_to_modes(run: TracedRun, /, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Pass an operation of PyTorch to modes, and not the function with which a library has replaced it."""
    frame = run.machine.frame
    operation = function if frame is None else own_operation(function, frame.code, frame.globals)
    return run.machine.call_unreported(handle_torch_function, (operation, *args), kwargs)


@lookaside(DEFAULT)
def default_function(
    run: TracedRun, /, kind: type, operation: Any, kinds: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Run the operation for `super().__torch_function__` of a subclass, and return instances of the subclass."""
    if not all(issubclass(kind, base) for base in kinds):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        return run.recorder.subclasses.default(operation, args, kwargs or {}, kind)


@lookaside(torch.from_numpy)
def from_numpy(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return a tensor on the memory of an array: an input for an array from outside, otherwise a constant."""
    return tensor_of_array(run, args[0]) if len(args) == 1 and not kwargs else NOT_TAKEN


@lookaside_of_each(torch.as_tensor, torch.asarray)
def as_tensor(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return a tensor that `torch.as_tensor` makes of an outside array as an input, with the given dtype and device."""
    if len(args) == 1 and can_be_tensor(args[0], kwargs):
        return tensor_of(run, args[0], kwargs)
    if not args or not is_numeric_array(args[0]):
        made: torch.Tensor | NotTaken = tensor_of_buffer(function, run, *args, **kwargs)
        return made
    tensor: torch.Tensor = function(tensor_of_array(run, args[0]), *args[1:], **kwargs)
    return tensor


@lookaside_of_each(torch.frombuffer, torch.from_dlpack)  # type: ignore[attr-defined]
def tensor_of_buffer(
    function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any
) -> torch.Tensor | NotTaken:
    """Return a tensor on the memory of a buffer, to which writes are refused.

    For a buffer from outside, each call makes the tensor again. Otherwise, the values are a constant, which each call
    copies.
    """
    buffer = args[0] if args else kwargs.get("buffer")
    if not is_buffer(buffer) or kwargs.get("requires_grad") or is_drawn(run, buffer):
        return NOT_TAKEN
    if run.outside.path_of(buffer) is not None:
        run.before_native(function, args, kwargs)
        return run.recorder.data.share(run.recorder.function(function, args, kwargs), buffer)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = function(*args, **kwargs)
        if real.device.type != "cpu" or real.untyped_storage().resizable():
            return NOT_TAKEN
        copied = real.clone()
    return run.recorder.data.share(record(run, torch.clone, copied), buffer)


@lookaside(torch.tensor)
def tensor(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Copy an array from outside, or a random array, by copying the tensor that is an input.

    A tensor of an empty list is a tensor of zeros without elements, which is an operation that regions accept.
    """
    if len(args) == 1 and can_be_tensor(args[0], kwargs):
        return tensor_of(run, args[0], kwargs)
    is_of_nothing = bool(args) and type(args[0]) in (list, tuple) and not args[0]
    if is_of_nothing and len(args) == 1 and run.outside.path_of(args[0]) is None:
        return torch.zeros(0, **kwargs)
    is_outside_array = args and run.outside.path_of(args[0]) is not None and is_numeric_array(args[0])
    if not is_outside_array or len(args) > 1 or kwargs.keys() - {"dtype", "device", "requires_grad"}:
        return NOT_TAKEN
    requires_grad = kwargs.pop("requires_grad", False)
    copied = torch.as_tensor(tensor_of_array(run, args[0]), **kwargs).clone()
    return copied.requires_grad_() if requires_grad else copied


def is_numeric_array(value: Any) -> bool:
    """Whether torch.from_numpy accepts a value."""
    return derives_from(type(value), "numpy.ndarray") and value.dtype.kind in "biufc" and value.dtype.isnative


def tensor_of_array(run: TracedRun, array: object) -> torch.Tensor:
    """Return `torch.from_numpy` of an array: an input, the result of an assignment, or a constant that is copied.

    Writes to the constant, to the result of the assignment, or to the tensor of a random array, are refused.
    """
    if id(array) in run.outside.assignments:
        return run.recorder.data.share(run.outside.assignments[id(array)], array)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = torch.from_numpy(array)
    path = run.outside.path_of(array)
    if path is None:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            copied = real.clone()
        return run.recorder.data.share(record(run, torch.clone, copied), array)
    run.outside.read(path.tensor(real), real)
    return run.recorder.data.share(real, array) if leads_from_draw(path) else real


def maker_of_tensors(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a subclass with torch.Tensor's `__new__`, or a bound `as_subclass` or `new`."""
    if is_constructed_natively(function):
        return construct(run, function, args, kwargs)
    if type(function) is not BuiltinMethodType or function.__name__ not in METHODS:
        return NOT_TAKEN
    owner: Any = function.__self__
    is_method = issubclass(type(owner), torch.Tensor)
    return METHODS[function.__name__](run, owner, *args, **kwargs) if is_method else NOT_TAKEN


@lookaside(torch.Tensor.new)
def new_tensor_like(run: TracedRun, /, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return the tensor that `tensor.new(array)` makes on the memory of an array of the same dtype."""
    return tensor_of_array(run, args[0]) if shares_memory(tensor.dtype, args, kwargs) else NOT_TAKEN


def shares_memory(dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a legacy constructor of tensors of a dtype gives its result the memory of its argument, an array."""
    is_of_array = len(args) == 1 and not kwargs and is_numeric_array(args[0])
    return is_of_array and getattr(torch, args[0].dtype.name, None) is dtype


# Methods of tensors, written in C, that make tensors.
METHODS: dict[str, Callable[..., Any]] = {AS_SUBCLASS.__name__: as_subclass, "new": new_tensor_like}


def construct(run: TracedRun, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Call a subclass: make a new tensor, and run the class's own `__init__` if it has one."""
    tensor: torch.Tensor = run.machine.invoke(NEW, (kind, *args), kwargs)
    if type(type_lookup(kind, "__init__")) is FunctionType:
        initialize(run.machine, tensor, args, kwargs)
    return tensor


def is_constructed_natively(kind: Any) -> bool:
    """Whether a callable is a subclass whose instances C code makes."""
    return issubclass(type(kind), type) and is_subclass(kind) and type_lookup(kind, "__new__") is NEW


def is_subclass(kind: type) -> bool:
    """Whether a class is a proper subclass of Tensor."""
    return issubclass(kind, torch.Tensor) and kind is not torch.Tensor


def cast(run: TracedRun, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """Return the tensor as an instance of a class."""
    with torch._C.DisableTorchFunction():
        converted: torch.Tensor = run.recorder.subclasses.cast(tensor, kind)
    return converted


def record(run: TracedRun, function: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor:
    """Run a function of a tensor as a bound symbol of the trace, regardless of the tensor's class."""
    with torch._C.DisableTorchFunction():
        recorded: torch.Tensor = run.recorder.function(function, (tensor,), {})
    return recorded


@lookaside(dir)
def names_in(run: TracedRun, /, *owners: Any) -> list[str] | NotTaken:
    """Return the names that `dir` lists for a tensor of the program, which has no attributes of a fake."""
    if len(owners) != 1 or not isinstance(owners[0], torch.Tensor):
        return NOT_TAKEN
    names = names_of_tensor(run, owners[0])
    return names if isinstance(names, NotTaken) else sorted(names)


@lookaside(torch.Tensor.__dir__)
def names_of_tensor(run: TracedRun, /, tensor: torch.Tensor) -> list[str] | NotTaken:
    """Return the names in a tensor's class and its own attributes, as `torch.Tensor.__dir__` does."""
    kind = run.class_of(tensor)
    if type_lookup(kind, "__dir__") is not torch.Tensor.__dir__:
        return NOT_TAKEN
    load = run.machine.load_attr
    hidden = {"volatile"} if load(tensor, "is_cuda") and not load(tensor, "is_sparse") else HIDDEN
    if isinstance(tensor, FakeTensor):
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            hidden = hidden | attributes_of_fakes()
    run.native_reads.list_names(tensor)
    names = (*dir(kind), *run.machine.call(list, load(tensor, "__dict__")))
    return sorted(name for name in names if name not in hidden)
