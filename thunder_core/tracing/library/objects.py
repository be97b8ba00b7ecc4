"""Functions that generated code calls: prologues refuse inputs, programs check values, epilogues create objects."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from thunder_core.foundation.type_flags import IMMUTABLE_TYPE
from thunder_core.tracing.library.states import digest

# For each class of constants with parts, the function that returns the parts. The parts are compared like constants.
PARTS_OF_CONSTANTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    tuple: tuple,
    slice: lambda value: (value.start, value.stop, value.step),
    range: lambda value: (value.start, value.stop, value.step),
}


class GuardFailed(Exception):
    """A guard of a prologue does not hold: the guard with this `number` failed for the value `actual`."""

    def __init__(self, number: int, actual: Any = None) -> None:
        super().__init__(number)
        self.number = number
        self.actual = actual


def refuse(number: int, actual: object) -> NoReturn:
    """Refuse the inputs of a prologue: guard `number` does not hold for the value `actual`."""
    raise GuardFailed(number, actual)


class UnexpectedValue(GuardFailed):
    """A value that the program reads from a tensor, such as a number or a shape, differs from the value in tracing."""

    def __init__(self, expected: Any, actual: Any) -> None:
        super().__init__(-1, actual)
        self.expected = expected


class UntracedError(UnexpectedValue):
    """An operation has raised an `error` that it did not raise in tracing.

    The program may catch the error at `lines`.
    """

    def __init__(self, error: Exception, lines: frozenset[Any]) -> None:
        super().__init__("no error", f"{type(error).__name__}: {error}")
        self.error, self.lines = error, lines
        self.with_traceback(error.__traceback__)


def lacks(owner: object, name: str) -> bool:
    """Whether an object lacks an attribute; the check does not call the object's `__getattr__`."""
    try:
        object.__getattribute__(owner, name)
    except AttributeError:
        return True
    return False


def cached_value(cached: Callable[..., Any], names: tuple[str, ...], *args: Any) -> Any:
    """Call a function with `functools.lru_cache`; it returns its cached value if there is one.

    The last arguments are keyword arguments with these `names`.
    """
    positional = len(args) - len(names)
    return cached(*args[:positional], **dict(zip(names, args[positional:], strict=True)))


def same_values(actual: object, expected: object) -> bool:
    """Whether two constants, and their parts, have the same class and value.

    The values 1, 1.0 and True differ, and so do 0.0 and -0.0. NaN equals NaN.
    """
    if actual is expected:
        return True
    kind = type(expected)
    if type(actual) is not kind:
        return False
    if kind is float or kind is complex:
        return repr(actual) == repr(expected)
    if kind in PARTS_OF_CONSTANTS:
        pairs = PARTS_OF_CONSTANTS[kind](actual), PARTS_OF_CONSTANTS[kind](expected)
        return len(pairs[0]) == len(pairs[1]) and all(map(same_values, *pairs))
    if kind is frozenset:
        return same_members(actual, expected)
    return bool(actual == expected)


def same_members(actual: Any, expected: Any) -> bool:
    """Whether two sets, or iterables of members, have the same members in any order, compared as by `same_values`."""
    return {*map(exact_key, actual)} == {*map(exact_key, expected)}


def exact_key(value: Any) -> tuple[Any, ...]:
    """Return a key that two constants share if `same_values` holds for them."""
    kind = type(value)
    if kind is float or kind is complex:
        return kind, repr(value)
    if kind in PARTS_OF_CONSTANTS:
        return kind, tuple(map(exact_key, PARTS_OF_CONSTANTS[kind](value)))
    return (kind, frozenset(map(exact_key, value))) if kind is frozenset else (kind, value)


def expect_value(actual: object, expected: object) -> None:
    """Raise `UnexpectedValue` if a number differs from the traced number: NaN equals NaN, and 0.0 differs from -0.0."""
    if type(actual) is not type(expected) or repr(actual) != repr(expected):
        raise UnexpectedValue(expected, actual)


def expect_layout(actual: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raise `UnexpectedValue` if a tensor has another shape, or other strides in elements, than in tracing."""
    if actual.shape != shape or actual.stride() != stride:
        found = f"of shape {tuple(actual.shape)} and strides {actual.stride()}"
        raise UnexpectedValue(f"of shape {shape} and strides {stride}", found)


def expect_shape(actual: Any, shape: tuple[int, ...]) -> None:
    """Raise `UnexpectedValue` if a tensor has another shape than in tracing."""
    if actual.shape != shape:
        raise UnexpectedValue(f"of shape {shape}", f"of shape {tuple(actual.shape)}")


def with_data(tensor: Any, data: Any) -> Any:
    """Set `tensor.data`, which gives the tensor the memory and the metadata of `data`, and return the tensor."""
    tensor.data = data
    return tensor


DATA_DIGEST_PREFIX = "data"  # the first word of a digest of a tensor's values


def digest_of(tensor: Any) -> str:
    """Return a digest of a tensor's values, independent of its device and layout."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{DATA_DIGEST_PREFIX} {digest(data.numpy().tobytes())}"


def expect_error(
    function: Any, kind: type[Exception], text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise `UnexpectedValue` if an operation does not raise the error that the program caught in tracing."""
    message = f"{kind.__name__}: {text}"
    try:
        with torch.no_grad():
            function(*args, **kwargs)
    except Exception as error:
        if type(error) is kind and str(error) == text:
            return
        raise UnexpectedValue(message, f"{type(error).__name__}: {error}") from None
    raise UnexpectedValue(message, "no error")


def expect_items(actual: Any, count: int) -> Any:
    """Return a sequence if it has `count` items; raise `UnexpectedValue` otherwise."""
    if len(actual) != count:
        raise UnexpectedValue(f"{count} items", f"{len(actual)}")
    return actual


def new(kind: type) -> Any:
    """Create an instance without attributes: call `__new__` of the C base class, not methods written in Python."""
    return _native_base(kind).__new__(kind)


def fill(instance: Any, *, items: Any = (), state: Mapping[str, Any] | None = None) -> None:
    """Set the items (of a dict, list, set or deque) and the attributes of an instance, bypassing overridden methods."""
    base: Any = _native_base(type(instance))
    if issubclass(base, dict):
        for key, value in (items or {}).items():
            base.__setitem__(instance, key, value)
    elif items:
        (base.update if issubclass(base, set) else base.extend)(instance, items)
    for name, value in (state or {}).items():
        object.__setattr__(instance, name, value)


def bounded_deque(kind: Any, items: list[Any], maxlen: int, state: Mapping[str, Any]) -> Any:
    """Create a deque of a subclass with a maximum length. Methods written in Python are bypassed."""
    instance = deque.__new__(kind)
    deque.__init__(instance, items, maxlen)
    fill(instance, state=state)
    return instance


def restore(instance: Any, state: Any) -> None:
    """Set the state of a new object: with `__setstate__` if it has one, or as its attributes."""
    setter = getattr(instance, "__setstate__", None)
    if setter is None:
        vars(instance).update(state)
    else:
        setter(state)


class ShortLived:
    """An object that is freed at once, so that weak references to it are dead."""


def dead_reference() -> weakref.ref[Any]:
    """Return a weak reference to an object that no longer exists."""
    return weakref.ref(ShortLived())


def dead_keyed_reference(key: Any) -> weakref.KeyedRef[Any, Any]:
    """Return the weak reference of a `WeakValueDictionary` for a key, to an object that no longer exists."""
    return weakref.KeyedRef(ShortLived(), lambda reference: None, key)


NO_MEMBERS: Mapping[str, Any] = {}


def raisable(
    kind: type[BaseException],
    args: tuple[Any, ...],
    state: Mapping[str, Any],
    cause: BaseException | None = None,
    context: BaseException | None = None,
    suppress: bool = False,
    members: Mapping[str, Any] = NO_MEMBERS,
) -> BaseException:
    """Create an exception without a traceback. A `__new__` in Python is called, but an `__init__` is not.

    `state` has the attributes in the `__dict__`, and `members` the attributes in slots and in C.
    """
    error: BaseException = kind.__new__(kind, *args)
    _native_base(kind).__init__(error, *args)
    vars(error).update(state)
    for name, member in members.items():
        BaseException.__setattr__(error, name, member)
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, suppress
    return error


def become(tensor: object, kind: type) -> None:
    """Change the class of a tensor to a subclass, such as Parameter.

    Its identity and its autograd graph do not change.
    """
    tensor.__class__ = kind


def _native_base(kind: type) -> Any:
    """Return the C class that determines the layout of a class's instances."""
    return next(base for base in kind.__mro__ if is_native(base))


def is_native(kind: type) -> bool:
    """Whether a class is written in C: it is immutable, or its `__new__` is a C function.

    The heap-type flag does not show this: from Python 3.12 on, `deque` is a heap type too.
    """
    constructor = vars(kind).get("__new__")
    return bool(kind.__flags__ & IMMUTABLE_TYPE) or getattr(constructor, "__self__", None) is kind


# The functions that check values of a program at run time, and the names of their symbols.
CHECK_FUNCTIONS = (expect_value, expect_layout, expect_shape, expect_items, expect_error)
CHECK_NAMES = frozenset(f"{__name__}.{check.__name__}" for check in CHECK_FUNCTIONS)
