"""Read attributes of callables without running Python code, such as the `__getattr__` of a callable's class."""

from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.changes.class_entries import ABSENT

# Classes of callables whose attributes are stored or computed by C code.
_TYPES_WITH_C_ATTRIBUTES = frozenset(
    {
        *(FunctionType, BuiltinFunctionType, MethodDescriptorType, ClassMethodDescriptorType),
        *(MethodWrapperType, WrapperDescriptorType),
    }
)
_DESCRIPTORS_IN_C = (GetSetDescriptorType, MemberDescriptorType)
_FIELDS_OF_METHODS = frozenset({"__self__", "__func__"})


def callable_attribute(function: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of a callable, such as `__self__`, or the default if there is none.

    An attribute that Python code computes, such as a property, counts as missing: reading the attribute would run code
    that the program does not run.
    """
    kind = type(function)
    while kind is MethodType and name not in _FIELDS_OF_METHODS:
        function, kind = function.__func__, type(function.__func__)
    if kind in _TYPES_WITH_C_ATTRIBUTES or kind is MethodType:
        return getattr(function, name, default)
    unbound = type_lookup(kind, name)
    if type(unbound) in _DESCRIPTORS_IN_C or is_property_in_c(unbound):
        try:
            return unbound.__get__(function, kind)
        except AttributeError:
            return default
    if type_lookup(type(unbound), "__set__") is not ABSENT:
        return default  # a data descriptor, such as a Python property: it takes precedence over a stored attribute
    stored = None if issubclass(kind, type) else namespace_of(function)
    if stored is not None and name in stored:
        return stored[name]
    is_plain = unbound is not ABSENT and type_lookup(type(unbound), "__get__") is ABSENT
    return unbound if is_plain else default


def callable_name(function: Any) -> str:
    """Return the `__name__` of a callable; an empty string if the callable has no name, or Python code computes it."""
    if type(function) in _TYPES_WITH_C_ATTRIBUTES:
        c_name: str = function.__name__
        return c_name
    name = callable_attribute(function, "__name__")
    return name if type(name) is str else ""


def is_property_in_c(unbound: object) -> bool:
    """Whether a class attribute is a property with a getter in C, as in classes of pybind11."""
    if type(unbound) is not property:
        return False
    kind = type(unbound.fget)
    return kind is BuiltinFunctionType or (kind.__name__ == "instancemethod" and not kind.__flags__ & HEAP_TYPE)
