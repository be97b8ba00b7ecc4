"""Reductions, as for pickle: the calls with which an epilogue rebuilds objects whose state is in C."""

from __future__ import annotations

import array
import copyreg
import datetime as dt
import decimal
import functools
import inspect
import itertools
import operator
import re
import types
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.attributes import C_METHODS
from thunder_core.frontend.interpreter.bridges import BridgedIterator, Callback
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.generators import frame_of
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText, TextPart
from thunder_core.tracing.ir.stored_attributes import attributes_of
from thunder_core.tracing.library import objects, output
from thunder_core.tracing.library.states import viewed_mapping

MAX_BYTES_IN_SOURCE = 4096  # larger arrays are constants of the epilogue, not a part of its source


@dataclass(frozen=True, eq=False)
class Frozen:
    """An object that is a constant of the epilogue, in its current state."""

    value: Any


@dataclass(frozen=True, eq=False)
class Reduction:
    """The call that rebuilds an object, and the state that is then restored. `call` is a function or a dotted name."""

    call: Any
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None

    @property
    def parts(self) -> list[Any]:
        """The values that must be rebuilt first: a callable, the arguments and the state."""
        called = [] if isinstance(self.call, str) else [self.call]
        return [*called, *self.args, *self.keywords.values(), self.state]


@dataclass(frozen=True, eq=False)
class TensorToPrint:
    """A tensor to print: its values, its class, and the name of its autograd node, or an empty string."""

    values: torch.Tensor
    kind: type
    node: str


@dataclass(frozen=True, eq=False)
class DeferredCallback:
    """The callback of a weak reference while tracing, which replaces the callback `function` of the program."""

    function: Callable[[Any], Any]
    note_death: Callable[[], None]

    def __call__(self, _: object) -> None:
        """Note that the object has died, without calling `function`."""
        self.note_death()


Reducer = Callable[[Any, str], Reduction]


def reduction_of(value: object, where: str) -> Reduction | None:
    """Return the reduction that rebuilds an object; None for a class that has no complete reduction here.

    `where` names the object in error messages. Raises `CannotReplay` for a generator that has begun.
    """
    reduce = REDUCERS.get(type(value))
    if reduce is None and isinstance(value, deque) and value.maxlen is not None:
        return Reduction(
            objects.bounded_deque, (type(value), list(deque.__iter__(value)), value.maxlen, attributes_of(value))
        )
    if reduce is None:
        reduce = next((reducer for kind, reducer in REDUCERS_BY_BASE if derives_from(type(value), kind)), None)
    return None if reduce is None else reduce(value, where)


def derives_from(kind: type, base: type | str) -> bool:
    """Whether a class derives from a base.

    The base is a class or, because NumPy may not be installed, a dotted name.
    """
    if isinstance(base, type):
        return issubclass(kind, base)
    return any(f"{parent.__module__}.{parent.__name__}" == base for parent in kind.__mro__)


def reduce(value: object, where: str) -> Reduction:
    """Return the reduction of an object for pickle and copy."""
    reduce = copyreg.dispatch_table.get(type(value))
    with warnings.catch_warnings():
        # for iterators of itertools, which have no reductions since Python 3.14
        warnings.simplefilter("ignore", DeprecationWarning)
        reduction = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    call, args, state = (*reduction, None)[:3]
    return Reduction(call, tuple(map(unbridge, args)), state=unbridge(state))


def unbridge(value: object) -> Any:
    """Return the object of the program that an interpreter's `Callback` or `BridgedIterator` represents in C code.

    Items of tuples are replaced; other values are returned unchanged.
    """
    if isinstance(value, Callback | BridgedIterator):
        return unbridge(value.__reduce__()[1][0])
    return tuple(map(unbridge, value)) if type(value) is tuple else value


def reduce_frozen_set(value: Any, where: str) -> Reduction:
    """Reduce a frozen set to its members."""
    return Reduction(frozenset, (list(value),))


def reduce_deque(value: Any, where: str) -> Reduction:
    """Reduce a deque with a maximum length to its items."""
    return Reduction(deque, (list(value), value.maxlen))


def view_reducer(method: str) -> Reducer:
    """Return the function that reduces a view of a dict."""
    return lambda view, where: Reduction(f"dict.{method}", (viewed_mapping(view),))


def reduce_weak_reference(value: Any, where: str) -> Reduction:
    """Reduce a weak reference to its object and its callback. A reference to a dead object is rebuilt as dead."""
    referent, callback = weakref.ref.__call__(value), value.__callback__
    if isinstance(callback, DeferredCallback):
        callback = callback.function
    if referent is None:
        return Reduction(objects.dead_reference, ())
    return Reduction(weakref.ref, (referent, *(() if callback is None else (callback,))))


def reduce_keyed_reference(value: Any, where: str) -> Reduction:
    """Reduce the weak reference with which a `WeakValueDictionary` refers to a value."""
    referent = weakref.ref.__call__(value)
    if referent is None:
        return Reduction(objects.dead_keyed_reference, (value.key,))
    return Reduction(weakref.KeyedRef, (referent, value.__callback__, value.key))


def reduce_exception(value: BaseException, where: str) -> Reduction:
    """Reduce an exception to its arguments, attributes and causes, without its traceback."""
    candidates = {"cause": value.__cause__, "context": value.__context__, "suppress": value.__suppress_context__}
    origins = {name: attribute for name, attribute in candidates.items() if attribute not in (None, False)}
    names = [name for kind, names in MEMBERS_OF_EXCEPTIONS.items() if isinstance(value, kind) for name in names]
    members = {name: getattr(value, name) for name in names if getattr(value, name) is not None}
    members |= {name: item for name, item in attributes_of(value).items() if name not in vars(value)}
    keywords = origins | ({"members": members} if members else {})
    return Reduction(objects.raisable, (type(value), tuple(value.args), dict(vars(value))), keywords)


# By class of exceptions: the attributes that C code stores, and that the arguments do not determine.
MEMBERS_OF_EXCEPTIONS: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}


def reduce_generator(value: Any, where: str) -> Reduction:
    """Reduce a generator or coroutine that has not begun to the call that has created it.

    Raises `CannotReplay` for a generator that has begun or ended.
    """
    frame = frame_of(value)
    native = next(getattr(value, f"{kind}_frame") for kind in ("gi", "cr", "ag") if hasattr(value, f"{kind}_frame"))
    if native is None or frame is None or frame.function is None or frame.suspended or not frame.fast:
        raise CannotReplay(
            f"{where} is or contains the {type(value).__name__} `{value.__qualname__}`, "
            f"{describe_progress(frame, native)}; it cannot be rebuilt for the next call",
            fix="return a list of its items, or return the generator before its first item is taken",
        )
    if isinstance(value, types.CoroutineType):
        value.close()  # the coroutine is never awaited
    code = frame.code
    cells = frame.cell_slots()
    arguments = [
        slot.cell_contents if index in cells else slot for index, slot in enumerate(frame.fast[: argument_count(code)])
    ]
    plain, named = code.co_argcount, code.co_kwonlyargcount
    rest = arguments[plain + named :]
    more = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else ()
    keywords = dict(zip(code.co_varnames[plain : plain + named], arguments[plain : plain + named], strict=True))
    return Reduction(frame.function, (*arguments[:plain], *more), {**keywords, **(rest[0] if rest else {})})


def describe_progress(frame: Frame | None, native: types.FrameType | None) -> str:
    """Return the progress of a generator, in words. `native` is None if the generator has ended."""
    if native is None:
        return "which has ended"
    if frame is None or frame.function is None:
        return "which was made by code that runs natively"
    return f"which has begun and is at line {frame.lineno} of {frame.filename}"


def argument_count(code: types.CodeType) -> int:
    """Return the number of variables of a function that are arguments, including `*args` and `**kwargs`."""
    extra = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + extra


def reduce_scalar(value: Any, where: str) -> Reduction:
    """Reduce a NumPy scalar to its class and a Python number. Other dtypes have NumPy's own reduction."""
    plain = value.dtype.kind in "biufcSU" and value.dtype.itemsize <= 8
    return Reduction(type(value), (value.item(),)) if plain else reduce(value, where)


def root_of_array(value: Any) -> Any:
    """Return the object that owns the memory of a NumPy array; None for other objects."""
    if not derives_from(type(value), "numpy.ndarray"):
        return None
    while getattr(value, "base", None) is not None:
        value = value.base
    return value


def reduce_array(value: Any, where: str) -> Reduction:
    """Reduce a NumPy array to its data."""
    if value.base is not None and not isinstance(value.base, bytes):
        value = value.copy(order="K")
    if value.dtype.hasobject or value.nbytes <= MAX_BYTES_IN_SOURCE:
        return reduce(value, where)
    return Reduction("numpy.array", (Frozen(value.copy(order="K")),))


FUNCTION_ATTRIBUTES = ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__", "__dict__")


def changed_attributes(function: types.FunctionType) -> list[str]:
    """Return the names of the attributes of a function that have been changed since the function was created."""
    plain = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)
    return [name for name in FUNCTION_ATTRIBUTES if getattr(function, name) != getattr(plain, name)]


def is_bound_in_c(value: object) -> bool:
    """Whether a value is a C method bound to an object, such as `[].append`, not a function of a module or class."""
    owner = callable_attribute(value, "__self__") if issubclass(type(value), C_METHODS) else None
    return owner is not None and not isinstance(owner, types.ModuleType | type)


_LISTED: list[Any] = []
_MAPPED: dict[Any, Any] = {}
ITERATORS = (
    *map(type, map(iter, (_LISTED, (), set(), "", "é", b"", range(0), bytearray(), array.array("b")))),
    *map(type, map(iter, (_MAPPED, _MAPPED.values(), _MAPPED.items()))),
    *map(type, (reversed(_LISTED), reversed(range(0)), iter(range(1 << 70)))),
    *(map, filter, zip, enumerate, reversed),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type) and "__reduce__" in vars(kind)),
)
CLASSES_WITH_REDUCTIONS = (
    *(dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone),
    *(decimal.Decimal, uuid.UUID, re.Pattern, types.GenericAlias, types.UnionType, types.SimpleNamespace),
    *(functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(array.array, bytearray),
)
REDUCERS: dict[type, Reducer] = {
    SymbolicText: lambda value, where: Reduction(output.text, value.parts),
    TextPart: lambda value, where: Reduction(value.function, value.arguments),
    TensorToPrint: lambda value, where: Reduction(output.tensor_to_print, (value.values, value.kind, value.node)),
    **dict.fromkeys((*ITERATORS, *CLASSES_WITH_REDUCTIONS), reduce),
    **{type(getattr(_MAPPED, name)()): view_reducer(name) for name in ("keys", "values", "items")},
    deque: reduce_deque,
    frozenset: reduce_frozen_set,
    types.MappingProxyType: lambda value, where: Reduction(types.MappingProxyType, (viewed_mapping(value),)),
    weakref.ref: reduce_weak_reference,
    weakref.KeyedRef: reduce_keyed_reference,
    property: lambda value, where: Reduction(property, (value.fget, value.fset, value.fdel, value.__doc__)),
    **dict.fromkeys((staticmethod, classmethod), lambda value, where: Reduction(type(value), (value.__func__,))),
    **dict.fromkeys((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), reduce_generator),
    torch.finfo: lambda value, where: Reduction(torch.finfo, (getattr(torch, value.dtype),)),
    torch.iinfo: lambda value, where: Reduction(torch.iinfo, (getattr(torch, value.dtype),)),
}
REDUCERS_BY_BASE: tuple[tuple[type | str, Reducer], ...] = (
    (BaseException, reduce_exception),
    ("numpy.generic", reduce_scalar),
    ("numpy.ndarray", reduce_array),
    ("numpy.dtype", reduce),
)
