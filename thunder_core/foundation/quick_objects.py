"""Faster frozen dataclasses and cached properties than Python's, because tracing makes thousands of objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")


def with_quick_init(kind: Class) -> Class:
    """Give a frozen dataclass an `__init__` that stores all fields at once, in a third of the time.

    The `__init__` of `dataclasses` calls `object.__setattr__` for each field. Raises `TypeError` for a field with a
    default factory, and for a field that is not a parameter of `__init__`.
    """
    fields = dataclasses.fields(kind)
    if any(not field.init or field.default_factory is not dataclasses.MISSING for field in fields):
        raise TypeError(f"{kind.__name__} has fields that a quick `__init__` cannot set")
    defaults = {f"default_{field.name}": field.default for field in fields}
    named = [field for field in fields if field.kw_only]
    parameters = [_parameter(field) for field in fields if not field.kw_only]
    parameters += ["*", *map(_parameter, named)] if named else []
    lines = [f"def __init__({', '.join(['self', *parameters])}):", "    values = self.__dict__"]
    lines += [f"    values[{field.name!r}] = {field.name}" for field in fields]
    lines += ["    self.__post_init__()"] if hasattr(kind, "__post_init__") else []
    namespace: dict[str, Any] = dict(defaults)
    exec("\n".join(lines), namespace)  # noqa: S102 - as `dataclasses` makes the method
    method = namespace["__init__"]
    method.__qualname__, method.__module__ = f"{kind.__qualname__}.__init__", kind.__module__
    method.__annotations__ = vars(kind)["__init__"].__annotations__
    type.__setattr__(kind, "__init__", method)
    return kind


def _parameter(field: dataclasses.Field[Any]) -> str:
    return field.name if field.default is dataclasses.MISSING else f"{field.name}=default_{field.name}"


class ComputedOnce(Generic[Value]):
    """A property that is computed when it is first read, like a `functools.cached_property`.

    In Python 3.11, `functools.cached_property` locks and is slower. The object must have a `__dict__`, which stores the
    value.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self._name] = self._function(instance)
        return value
