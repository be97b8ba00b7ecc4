"""Attribute access. Python functions that it calls (descriptors, `__getattribute__`, `__getattr__`) are interpreted."""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.interpreter import introspection
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import python_method, remember, shortcut, type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT

_OBJECT_GETATTRIBUTE = object.__getattribute__
_SLOT_WRAPPER = type(_OBJECT_GETATTRIBUTE)
_MODULE_GETATTRIBUTE = ModuleType.__getattribute__
_HOOK_TYPES = frozenset({_SLOT_WRAPPER, FunctionType})


def load(machine: Machine, owner: object, name: str) -> Any:
    """Return `owner.name`; raise the errors that CPython raises."""
    kind = type(owner)
    # If only C code reads the attribute, the shortcut is `getattr`, or `_MODULE_GETATTRIBUTE` for a module. Otherwise,
    # the shortcut is the class's `__getattr__`, which runs if C code finds no attribute.
    shortcut_value = shortcut(kind, name)
    if shortcut_value is getattr:
        return getattr(owner, name)
    if shortcut_value is _MODULE_GETATTRIBUTE:
        return getattr(owner, name) if name in owner.__dict__ else _load(machine, kind, owner, name)
    if shortcut_value is not None:
        try:
            return _OBJECT_GETATTRIBUTE(owner, name)
        except AttributeError:
            pass
        return _ask_fallback(machine, shortcut_value, owner, name)
    return _load(machine, kind, owner, name)


def _ask_fallback(machine: Machine, fallback: FunctionType, owner: object, name: str) -> Any:
    """Call `__getattr__` for an attribute that does not exist."""
    try:
        return machine.invoke(fallback, (owner, name), {})
    except AttributeError as error:
        _add_details(error, owner, name)
        raise


def _remember_shortcut(kind: type, hook: object, fallback: object, name: str) -> None:
    """Store a shortcut for `load`, if reading this attribute runs no Python code except possibly `__getattr__`."""
    if (
        hook is not _OBJECT_GETATTRIBUTE and hook is not _MODULE_GETATTRIBUTE
    ) or kind in introspection.ATTRIBUTE_READERS:
        return
    unbound = type_lookup(kind, name)
    if unbound is not ABSENT and type(unbound).__flags__ & HEAP_TYPE:
        return
    if type(unbound) is property or type(unbound) is classmethod:
        return
    if fallback is ABSENT:
        remember(kind, name, getattr if hook is _OBJECT_GETATTRIBUTE else _MODULE_GETATTRIBUTE)
    elif hook is _OBJECT_GETATTRIBUTE:
        remember(kind, name, fallback)


def _load(machine: Machine, kind: type, owner: object, name: str) -> Any:
    """Return `owner.name` without a remembered shortcut."""
    hook = type_lookup(kind, "__getattribute__")
    fallback = type_lookup(kind, "__getattr__")
    if type(hook) not in _HOOK_TYPES or (fallback is not ABSENT and type(fallback) is not FunctionType):
        return machine.call_unreported(getattr, (owner, name), {})
    _remember_shortcut(kind, hook, fallback, name)
    try:
        if fallback is ABSENT:
            return _load_by_hook(machine, hook, owner, name)
        try:
            return _load_by_hook(machine, hook, owner, name)
        except AttributeError:
            pass
        return machine.invoke(fallback, (owner, name), {})
    except AttributeError as error:
        _add_details(error, owner, name)
        raise


def _load_by_hook(machine: Machine, hook: object, owner: object, name: str) -> Any:
    """Read an attribute with `hook`, the type's `__getattribute__`, which is a Python function or a C slot."""
    if type(hook) is FunctionType:
        return machine.invoke_hook(hook, (owner, name))
    return load_generic(machine, hook, owner, name)


def _add_details(error: AttributeError, owner: object, name: str) -> None:
    """Store the name and the object in an error, as CPython does for its suggestions."""
    if getattr(error, "name", None) is None and getattr(error, "obj", None) is None:
        error.name, error.obj = name, owner


def load_generic(machine: Machine, hook: Any, owner: Any, name: str) -> Any:
    """Return the result of `hook`, the type's `__getattribute__` in C; getters that it would call are interpreted."""
    kind = type(owner)
    reader = introspection.ATTRIBUTE_READERS.get(kind)
    if reader is not None:
        return reader(machine, owner, name)
    getter = _class_getter(kind, owner, name) if issubclass(kind, type) else _getter(kind, owner, name)
    if getter is None and hook is _MODULE_GETATTRIBUTE and machine.observer is not None:
        module_hook = _module_hook(owner, name)
        if module_hook is not None:
            machine.observer.on_load_attr(owner, "__getattr__", module_hook)
            return machine.invoke_hook(module_hook, (name,))
    if getter is None:
        return (
            machine.call_unreported(hook, (owner, name), {})
            if _may_call_python(kind, owner, name)
            else hook(owner, name)
        )
    return machine.invoke(getter[0], getter[1], {})


def _may_call_python(kind: type, owner: Any, name: str) -> bool:
    """Whether C code that reads the attribute may call a Python function that `_getter` cannot determine.

    This is so for a descriptor whose class is a heap type with a `__get__` in C, for a class method around an object
    other than a function, and for C types that delegate attribute access, such as weak proxies.
    """
    unbound = type_lookup(kind, name)
    if unbound is ABSENT and issubclass(kind, type):
        unbound = type_lookup(owner, name)
    if unbound is ABSENT:
        return type_lookup(kind, "__getattribute__") not in (
            _OBJECT_GETATTRIBUTE,
            _MODULE_GETATTRIBUTE,
            type.__getattribute__,
        )
    if type(unbound) is classmethod:
        return type(unbound.__func__) is not FunctionType
    return bool(type(unbound).__flags__ & HEAP_TYPE) and type_lookup(type(unbound), "__get__") is not ABSENT


def _getter(kind: type, owner: object, name: str) -> introspection.PythonCall | None:
    """Return the Python function that reading an instance's attribute calls, with its arguments; None if none."""
    unbound = type_lookup(kind, name)
    if unbound is ABSENT or type(unbound) is FunctionType:
        return None
    return _descriptor_getter(unbound, owner, kind, lambda: _is_in_instance_dict(owner, name))


def _module_hook(module: object, name: str) -> FunctionType | None:
    """Return the module's own `__getattr__`, if the module lacks the name; otherwise None."""
    fallback = module.__dict__.get("__getattr__")
    if type(fallback) is not FunctionType:
        return None
    try:
        _OBJECT_GETATTRIBUTE(module, name)
    except AttributeError:
        return fallback
    return None


def _class_getter(kind: type, owner: type, name: str) -> introspection.PythonCall | None:
    """Return the Python function that reading a class's attribute calls, with its arguments; None if none."""
    of_metaclass = type_lookup(kind, name)
    own = type_lookup(owner, name)
    if of_metaclass is not ABSENT:
        getter = _descriptor_getter(of_metaclass, owner, kind, lambda: own is not ABSENT)
        if getter is not None:
            return getter
        if own is ABSENT or _is_data_descriptor(type(of_metaclass)):
            return None
    if own is ABSENT or type(own) in _TYPES_WITHOUT_PYTHON_GET:
        return _getter_of_class_method(own, owner)
    method = python_method(type(own), "__get__")
    return None if method is None else (method, (own, None, owner))


_TYPES_WITHOUT_PYTHON_GET = frozenset({FunctionType, staticmethod, classmethod, property, int, str, float, bool, tuple})


def _descriptor_getter(
    unbound: Any, owner: Any, kind: type, is_hidden: Callable[[], bool]
) -> introspection.PythonCall | None:
    """Return the getter of a descriptor, with its arguments.

    Return None if the owner's own entry takes precedence (`is_hidden()`), or if the descriptor's `__get__` is in C and
    calls no getter.
    """
    if type(unbound) is property:
        return None if unbound.fget is None else (unbound.fget, (owner,))
    if type(unbound) is classmethod:
        getter = _getter_of_class_method(unbound, kind)
        return None if getter is None or is_hidden() else getter
    method = python_method(type(unbound), "__get__")
    if method is None:
        return introspection.property_getter(unbound, owner)
    if not _is_data_descriptor(type(unbound)) and is_hidden():
        return None
    return method, (unbound, owner, kind)


def _getter_of_class_method(unbound: object, owner: type) -> introspection.PythonCall | None:
    """Return the getter of `classmethod(property(...))`, which attribute access calls before Python 3.13; else None."""
    if type(unbound) is not classmethod or sys.version_info >= (3, 13):
        return None
    return introspection.property_getter(unbound.__func__, owner)


def _is_data_descriptor(kind: type) -> bool:
    """Whether instances of a type are data descriptors."""
    return type_lookup(kind, "__set__") is not ABSENT or type_lookup(kind, "__delete__") is not ABSENT


def _is_in_instance_dict(owner: object, name: str) -> bool:
    """Whether the instance's own dictionary has the name."""
    try:
        names = _OBJECT_GETATTRIBUTE(owner, "__dict__")
    except AttributeError:
        return False
    return isinstance(names, dict) and dict.__contains__(names, name)


def store(machine: Machine, owner: object, name: str, value: object) -> None:
    """Set `owner.name = value`; raise the errors that CPython raises."""
    hook = python_method(type(owner), "__setattr__")
    if hook is not None:
        machine.invoke(hook, (owner, name, value), {})
    else:
        store_generic(machine, setattr, owner, name, value)


def store_generic(machine: Machine, write: object, owner: object, name: str, value: object) -> None:
    """Write an attribute as the C function `write` does. A Python setter that it would call is interpreted."""
    setter = _accessor(owner, name, "fset", "__set__")
    if setter is None:
        machine.set_attr_natively(write, owner, name, value)
    else:
        machine.invoke(setter[0], (*setter[1], value), {})


def delete(machine: Machine, owner: object, name: str) -> None:
    """Delete `owner.name`; raise the errors that CPython raises."""
    hook = python_method(type(owner), "__delattr__")
    if hook is not None:
        machine.invoke(hook, (owner, name), {})
    else:
        delete_generic(machine, delattr, owner, name)


def delete_generic(machine: Machine, remove: object, owner: object, name: str) -> None:
    """Delete an attribute as the C function `remove` does. A Python deleter that it would call is interpreted."""
    deleter = _accessor(owner, name, "fdel", "__delete__")
    if deleter is None:
        machine.delete_attr_natively(remove, owner, name)
    else:
        machine.invoke(deleter[0], deleter[1], {})


def _accessor(owner: object, name: str, property_field: str, method_name: str) -> introspection.PythonCall | None:
    """Return the Python function that writing or deleting an attribute calls, with its first arguments."""
    unbound = type_lookup(type(owner), name)
    if unbound is ABSENT:
        return None
    if isinstance(unbound, property) and type_lookup(type(unbound), method_name) is property.__dict__[method_name]:
        function = property.__dict__[property_field].__get__(unbound)
        return None if function is None else (function, (owner,))
    method = python_method(type(unbound), method_name)
    return None if method is None else (method, (unbound, owner))
