"""The raise statement, and the matching of `except` and `except*`."""

import sys
from typing import Any, NoReturn

from thunder_core.frontend.interpreter.calls import issubclass_natively
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import type_name


def raise_new(machine: Machine, raised: object, cause: object, has_cause: bool) -> NoReturn:
    """Run `raise raised [from cause]`."""
    error = _instance(machine, raised, "exceptions must derive from BaseException")
    if has_cause:
        cause = None if cause is None else _instance(machine, cause, _CAUSE_MESSAGE)
        for name, value in (("__suppress_context__", True), ("__cause__", cause)):
            machine.set_attr_natively(BaseException.__setattr__, error, name, value)
    if machine.observer is not None:
        machine.observer.on_raise(error)
    raise error


_CAUSE_MESSAGE = "exception causes must derive from BaseException"


def _instance(machine: Machine, raised: Any, message: str) -> BaseException:
    """Return an exception, or an instance of an exception class. Raise TypeError for other objects."""
    if issubclass(type(raised), type) and issubclass_natively(raised, BaseException):
        instance = machine.invoke(raised, (), {})
        if not isinstance(instance, BaseException):
            raise TypeError(
                f"calling {raised!r} should have returned an instance of BaseException, not {type(instance)!r}"
            )  # fmt: skip
        return instance
    if issubclass_natively(type(raised), BaseException):
        return raised  # type: ignore[no-any-return]
    raise TypeError(message)


def handled_exception(machine: Machine) -> BaseException:
    """Return the exception that a bare `raise` raises again."""
    error = sys.exception()
    if machine.observer is not None:
        machine.observer.on_reraise(error)
    if error is None:
        raise RuntimeError("No active exception to reraise")
    return error


def matches(error: BaseException, error_types: object) -> bool:
    """Whether `except error_types` catches an exception."""
    classes = error_types if isinstance(error_types, tuple) else (error_types,)
    for kind in classes:
        if not (issubclass(type(kind), type) and issubclass_natively(kind, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return _is_instance(error, error_types)


def _is_instance(error: Any, error_types: Any) -> bool:
    """Whether an exception is an instance of one of these classes, in tuples of any depth."""
    if isinstance(error_types, tuple):
        return any(_is_instance(error, kind) for kind in error_types)
    return issubclass(type(error_types), type) and issubclass_natively(type(error), error_types)


def split_group(machine: Machine, error: BaseException, error_types: object) -> tuple[Any, Any]:
    """Return the part of an exception that `except* error_types` catches, and the rest. Each is None if empty."""
    matches(error, error_types)
    for kind in error_types if isinstance(error_types, tuple) else (error_types,):
        if issubclass_natively(kind, BaseExceptionGroup):
            raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    if _is_instance(error, error_types):
        if isinstance(error, BaseExceptionGroup):
            return error, None
        group = BaseExceptionGroup if not isinstance(error, Exception) else ExceptionGroup
        return group("", (error,)), None
    if isinstance(error, BaseExceptionGroup):
        halves = machine.invoke(machine.load_attr(error, "split"), (error_types,), {})
        if not isinstance(halves, tuple):
            raise TypeError(
                f"{type_name(type(error))}.split must return a tuple, not {type_name(type(halves))}"
            )  # fmt: skip
        if len(halves) < 2:
            raise TypeError(
                f"{type_name(type(error))}.split must return a 2-tuple, got tuple of size {len(halves)}"
            )  # fmt: skip
        return halves[0], halves[1]
    return None, error


def merge_exceptions(original: BaseException, raised: list[Any]) -> BaseException | None:
    """Return the exception that a `try` with `except*` raises at its end; None if there is none.

    The exception contains the parts of the original group that were raised again, as one group, and the new errors.
    """
    errors = [error for error in raised if error is not None]
    if not errors:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return errors[0]  # type: ignore[no-any-return]
    new = [error for error in errors if not _is_part(error, original)]
    reraised = [error for error in errors if _is_part(error, original)]
    projection = _projection(original, reraised)
    if not new:
        return projection
    if projection is not None:
        new.append(projection)
    return BaseExceptionGroup("", new) if len(new) > 1 else new[0]


def _is_part(error: BaseException, original: BaseException) -> bool:
    """Whether an error is a part of the original group that was raised again unchanged."""
    return (
        isinstance(error, BaseExceptionGroup)
        and error.__traceback__ is original.__traceback__
        and error.__cause__ is original.__cause__
        and error.__context__ is original.__context__
        and getattr(error, "__notes__", None) is getattr(original, "__notes__", None)
    )


def _projection(original: BaseExceptionGroup[Any], parts: list[Any]) -> BaseException | None:
    """Return the original group reduced to the leaves of the parts."""
    if not parts:
        return None
    leaves: set[int] = set()
    for part in parts:
        _add_leaves(part, leaves)
    return original.subgroup(lambda leaf: id(leaf) in leaves)


def _add_leaves(part: BaseException, leaves: set[int]) -> None:
    """Add the identities of the leaves of a group."""
    if isinstance(part, BaseExceptionGroup):
        for error in part.exceptions:
            _add_leaves(error, leaves)
    else:
        leaves.add(id(part))
