"""The builtins `str`, `repr`, `ascii` and `format` for objects whose special methods may be in Python."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup, type_name
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES


def convert(machine: Machine, function: Callable[[Any], Any], value: object) -> Any:
    """Apply `str`, `repr` or `ascii`."""
    kind = type(value)
    if kind in PRIMITIVE_TYPES:
        return function(value)
    replacement = machine.text_of(function, (value,))
    if replacement is not None:
        return replacement
    name = "__str__" if function is str else "__repr__"
    method = type_lookup(kind, name)
    if name == "__str__" and method is object.__str__:
        name, method = "__repr__", type_lookup(kind, "__repr__")
    if type(method) is not FunctionType:
        return machine.operate(function, value)
    text = machine.invoke(method, (value,), {})
    if not isinstance(text, str):
        raise TypeError(f"{name} returned non-string (type {type_name(type(text))})")
    return text.encode("ascii", "backslashreplace").decode("ascii") if function is ascii else text


def apply_format(machine: Machine, value: object, specification: object) -> Any:
    """Apply `format`."""
    kind = type(value)
    if kind is str and not specification:
        return value
    replacement = machine.text_of(format, (value, specification))
    if replacement is not None:
        return replacement
    method = python_method(kind, "__format__")
    if method is not None:
        text = machine.invoke(method, (value, specification), {})
        if not isinstance(text, str):
            raise TypeError(f"__format__ must return a str, not {type_name(type(text))}")
        return text
    if not specification and type_lookup(kind, "__format__") is object.__dict__["__format__"]:
        return convert(machine, str, value)
    return machine.operate(format, value, specification)


def concatenate(*texts: str) -> str:
    """Concatenate strings, as an f-string does with its parts."""
    return "".join(texts)
