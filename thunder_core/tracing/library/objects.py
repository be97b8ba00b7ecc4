"""Functions that the text of prologues and epilogues calls: making objects anew, and refusing inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from thunder_core.tracing.library.states import digest

IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE, which no class statement gives


class GuardFailed(Exception):
    """The inputs differ from those that a program was made for; `number` is that of the guard, `found` what it met."""

    def __init__(self, number: int, found: Any = None) -> None:
        super().__init__(number)
        self.number = number
        self.found = found


def refuse(number: int, found: Any) -> NoReturn:
    """End a prologue: guard `number` does not hold for what was found."""
    raise GuardFailed(number, found)


class UnexpectedValue(GuardFailed):
    """A value that the program asked a tensor for differs from the one that it was traced for."""

    def __init__(self, wanted: Any, found: Any) -> None:
        super().__init__(-1, found)
        self.wanted = wanted


class CaughtError(UnexpectedValue):
    """An operation raised an `error` that the program may catch, and was traced as one that raises none."""

    def __init__(self, error: Exception, lines: frozenset[Any]) -> None:
        super().__init__("no error", f"{type(error).__name__}: {error}")
        self.error, self.lines = error, lines
        self.with_traceback(error.__traceback__)


def expect_value(found: Any, wanted: Any) -> None:
    """End a computation whose program asked for this number and got another; nan and signed zeros count as written."""
    if type(found) is not type(wanted) or repr(found) != repr(wanted):
        raise UnexpectedValue(wanted, found)


def expect_layout(found: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """End a computation whose program got a tensor of this shape and these strides, in elements, and gets another."""
    if found.shape != shape or found.stride() != stride:
        raise UnexpectedValue(f"of shape {shape} and strides {stride}", f"of shape {tuple(found.shape)}")


def expect_shape(found: Any, shape: tuple[int, ...]) -> None:
    """End a computation that makes a tensor of another shape than what was computed of it before."""
    if found.shape != shape:
        raise UnexpectedValue(f"of shape {shape}", f"of shape {tuple(found.shape)}")


def with_data(tensor: Any, data: Any) -> Any:
    """The tensor itself, which has the memory and the metadata of other data from now on."""
    tensor.data = data
    return tensor


OF_DATA = "data"  # the first word of a digest of a tensor's values


def digest_of(tensor: Any) -> str:
    """A digest of a tensor's values, wherever it is and however it is laid out."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{OF_DATA} {digest(data.numpy().tobytes())}"


def expect_error(function: Any, kind: type[Exception], text: str, args: Any, kwargs: Any) -> None:
    """End a computation whose program has caught this error of an operation, which now raises another one, or none."""
    wanted = f"{kind.__name__}: {text}"
    try:
        with torch.no_grad():
            function(*args, **kwargs)
    except Exception as error:
        if type(error) is kind and str(error) == text:
            return
        raise UnexpectedValue(wanted, f"{type(error).__name__}: {error}") from None
    raise UnexpectedValue(wanted, "no error")


def expect_items(found: Any, count: int) -> Any:
    """The items of a result, if there are so many."""
    if len(found) != count:
        raise UnexpectedValue(f"{count} items", f"{len(found)}")
    return found


def new(kind: type) -> Any:
    """An instance without any state, made past what its class does when it is called."""
    return _native_base(kind).__new__(kind)


def fill(made: Any, *, items: Any = (), state: Mapping[str, Any] | None = None) -> None:
    """Give an instance its items (of a dict, list, set or deque) and its attributes, past what its class overrides."""
    base: Any = _native_base(type(made))
    if isinstance(made, dict):
        for key, value in (items or {}).items():
            base.__setitem__(made, key, value)
    elif items:
        (base.update if isinstance(made, set) else base.extend)(made, items)
    for name, value in (state or {}).items():
        object.__setattr__(made, name, value)


def restore(made: Any, state: Any) -> None:
    """Give an object made anew the state that it had: by its own way to take one, or as its attributes."""
    setter = getattr(made, "__setstate__", None)
    if setter is None:
        vars(made).update(state)
    else:
        setter(state)


def raisable(
    kind: type[BaseException],
    args: tuple[Any, ...],
    state: Mapping[str, Any],
    cause: BaseException | None = None,
    context: BaseException | None = None,
    suppress: bool = False,
) -> BaseException:
    """An exception without a traceback, made past what its class overrides."""
    made: BaseException = kind.__new__(kind, *args)
    _native_base(kind).__init__(made, *args)
    vars(made).update(state)
    made.__cause__, made.__context__, made.__suppress_context__ = cause, context, suppress
    return made


def become(tensor: Any, kind: type) -> None:
    """Make a tensor one of a subclass, such as a parameter; it stays the same object, to autograd too."""
    tensor.__class__ = kind


def _native_base(kind: type) -> Any:
    """The class in C that lays out a kind's instances."""
    return next(base for base in kind.__mro__ if is_native(base))


def is_native(kind: type) -> bool:
    """Whether a class was written in C: it cannot be changed, or its `__new__` is C's own.

    That its type object lies on the heap tells nothing: from Python 3.12 on, that of `deque` does too.
    """
    made_by = vars(kind).get("__new__")
    return bool(kind.__flags__ & IMMUTABLE_TYPE) or getattr(made_by, "__self__", None) is kind


# The names of symbols that check what a computation finds.
CHECKS = (expect_value, expect_layout, expect_shape, expect_items, expect_error)
EXPECTATIONS = frozenset(f"{__name__}.{check.__name__}" for check in CHECKS)
