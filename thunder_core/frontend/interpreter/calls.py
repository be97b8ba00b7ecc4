"""Calls by the kind of the callable: methods, partials, classes, builtins and objects with `__call__`."""

import functools
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any

from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import parts_of_partial, type_lookup, type_name
from thunder_core.tracing.library.changes.class_entries import ABSENT

Arguments = Sequence[Any]
Keywords = dict[str, Any]
Route = Callable[[Machine, Any, Arguments, Keywords], Any]

# For each type, the function that calls its instances.
ROUTES: dict[type, Route] = {}
# For each replaced C function or type, the function that runs in place of its calls.
REPLACEMENTS: dict[Any, Route] = {}
# For each special method whose slots are replaced in all C classes, the function that runs in place of their calls.
REPLACED_SLOTS: dict[str, Route] = {}


def route_of(*kinds: type) -> Callable[[Route], Route]:
    """Register a function that calls instances of these types."""

    def register(route: Route) -> Route:
        ROUTES.update(dict.fromkeys(kinds, route))
        return route

    return register


def replaces(*natives: Any) -> Callable[[Route], Route]:
    """Register a function that replaces calls of these C functions or types."""

    def register(route: Route) -> Route:
        REPLACEMENTS.update(dict.fromkeys(natives, route))
        return route

    return register


def replaces_slot(name: str) -> Callable[[Route], Route]:
    """Register a function that replaces calls of a special method's slot in all C classes, such as `dict`."""

    def register(route: Route) -> Route:
        REPLACED_SLOTS[name] = route
        return route

    return register


def replacement_of(function: Any) -> Route | None:
    """Return the function that replaces calls of a C function or slot; None if there is none."""
    replacement = REPLACEMENTS.get(function)
    if replacement is None and type(function) is WrapperDescriptorType:
        return REPLACED_SLOTS.get(function.__name__)
    return replacement


def route(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call any callable except a Python function, with the route of its type."""
    kind = type(function)
    registered = ROUTES.get(kind)
    if registered is not None:
        return registered(machine, function, arguments, keywords)
    if issubclass(kind, type):
        return call_class_with_metaclass(machine, function, arguments, keywords)
    return call_object(machine, function, arguments, keywords)


@route_of(MethodType)
def call_method(machine: Machine, method: MethodType, arguments: Arguments, keywords: Keywords) -> Any:
    """Call the function of a bound method, with the instance as the first argument."""
    if type(arguments) is list:
        arguments.insert(0, method.__self__)
        return machine.invoke_quietly(method.__func__, arguments, keywords)
    return machine.invoke_quietly(method.__func__, (method.__self__, *arguments), keywords)


@route_of(BuiltinFunctionType, type(len), type(str.join), type(object.__init__))
def call_builtin(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call the replacement of a C function if there is one; otherwise call the C function natively."""
    replacement = replacement_of(function)
    if replacement is None and function.__name__ in _METHODS_READING_BUILTINS:
        replacement = call_with_builtins
    if replacement is None:
        return machine.call_native(function, arguments, keywords)
    return machine.report_result(function, arguments, keywords, replacement(machine, function, arguments, keywords))


# C methods that look up a builtin in their caller: iterators are pickled as calls of its `iter` or `reversed`.
_METHODS_READING_BUILTINS = frozenset({"__reduce__", "__reduce_ex__"})


def call_with_builtins(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a function natively, from a native frame that has the builtins of the interpreted caller."""
    if machine.frame is None:
        return machine.call_unreported(function, arguments, keywords)
    caller = FunctionType(_call.__code__, {"__builtins__": machine.frame.builtins})
    return machine.call_unreported(caller, (function, arguments, keywords, getattr(function, "__self__", None)), {})


@route_of(type("".__len__))
def call_slot(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a C slot bound to an instance, through the replacement of the unbound slot if there is one."""
    slot = getattr(function.__objclass__, function.__name__)
    replacement = replacement_of(slot)
    if replacement is None:
        return machine.call_native(function, arguments, keywords)
    all_arguments = (function.__self__, *arguments)
    return machine.report_result(function, arguments, keywords, replacement(machine, slot, all_arguments, keywords))


@route_of(functools.partial)
def call_partial(machine: Machine, partial: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call the function of a partial, with the partial's own arguments before the given ones."""
    function, args, own_keywords = parts_of_partial(partial)
    return machine.invoke(function, (*args, *arguments), {**own_keywords, **keywords})


@route_of(functools._lru_cache_wrapper)
def call_cached(machine: Machine, cached: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a function under `functools.lru_cache`."""
    return machine.call_cached(cached, arguments, keywords)


@route_of(type)
def call_class(machine: Machine, kind: type, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a class like `type.__call__`, with `__new__` and `__init__` in Python interpreted."""
    replacement = REPLACEMENTS.get(kind)
    if replacement is not None:
        return machine.report_result(kind, arguments, keywords, replacement(machine, kind, arguments, keywords))
    new = type_lookup(kind, "__new__")
    constructor = new.__func__ if type(new) is staticmethod else new
    if type(constructor) is FunctionType:
        instance = machine.invoke(constructor, (kind, *arguments), keywords)
    elif type(type_lookup(kind, "__init__")) is not FunctionType:
        if issubclass(kind, type):
            return machine.report_result(
                kind, arguments, keywords, call_in_globals(machine, kind, arguments, keywords)
            )  # fmt: skip
        # A `__call__` in Python of the metaclass has called `type.__call__`; calling `kind` would run `__call__` again.
        if type(type_lookup(type(kind), "__call__")) is FunctionType:
            return machine.call_native(type.__call__, (kind, *arguments), keywords)
        return machine.call_native(kind, arguments, keywords)
    else:
        instance = call_in_globals(machine, constructor, (kind, *arguments), keywords)
    if issubclass_natively(type(instance), kind):
        initialize(machine, instance, arguments, keywords)
    return instance


def _call(function: Any, arguments: Arguments, keywords: Keywords, *_owners: object) -> Any:
    """Call a function. Copies of this function run with the globals of an interpreted caller.

    The methods of `_owners` in Python are redirected to the machine: the object whose method the function is.
    """
    return function(*arguments, **keywords)


def call_in_globals(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a function natively, from a native frame that has the globals of the interpreted caller."""
    if machine.frame is None or function is object.__new__:
        return function(*arguments, **keywords)
    caller = FunctionType(_call.__code__, machine.frame.globals)
    return machine.call_unreported(caller, (function, arguments, keywords), {})


def initialize(machine: Machine, instance: object, arguments: Arguments, keywords: Keywords) -> None:
    """Run `__init__` of a new object, as `type.__call__` does."""
    init = type_lookup(type(instance), "__init__")
    if type(init) is FunctionType:
        result = machine.invoke(init, (instance, *arguments), keywords)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type_name(type(result))}'")
    elif type(init) is type(object.__init__):
        machine.call_unreported(init, (instance, *arguments), keywords)
    else:
        result = machine.invoke(bind(init, instance), arguments, keywords)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type_name(type(result))}'")


def issubclass_natively(kind: type, base: type) -> bool:
    """Whether a type has `base` in its method resolution order. No `__subclasscheck__` of a metaclass runs."""
    return base in type.__dict__["__mro__"].__get__(kind)


def bind(unbound: object, owner: object) -> Any:
    """Return a special method, bound to an instance by the method's `__get__` if there is one."""
    binder = getattr(type(unbound), "__get__", None)
    return unbound if binder is None else binder(unbound, owner, type(owner))


def call_class_with_metaclass(machine: Machine, kind: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a class whose metaclass is not `type`."""
    caller = type_lookup(type(kind), "__call__")
    if type(caller) is FunctionType:
        return machine.invoke(caller, (kind, *arguments), keywords)
    if caller is type.__call__:
        return call_class(machine, kind, arguments, keywords)
    return machine.call_native(kind, arguments, keywords)


def delegates_call(function: Any) -> bool:
    """Whether calling an object that is not a Python function calls another object, announced to the observer.

    For example, a bound method calls its function, and a class may call an `__init__` in Python.
    """
    kind = type(function)
    if kind in ROUTES:
        return kind in (MethodType, functools.partial)
    caller = type_lookup(kind, "__call__")
    if caller is type.__call__:  # a class whose metaclass is not `type`
        constructors = (type_lookup(function, name) for name in ("__new__", "__init__"))
        return any(type(method) in (FunctionType, staticmethod) for method in constructors)
    return type(caller) in DELEGATING_TYPES or issubclass(kind, functools.partial)


DELEGATING_TYPES = (FunctionType, staticmethod, classmethod, functools.partial, MethodType)


def call_object(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an instance of a class that may have a `__call__` in Python."""
    caller = type_lookup(type(function), "__call__")
    if caller is ABSENT:
        return function()  # raises CPython's own error, which may suggest a name for a module
    if type(caller) is FunctionType:
        return machine.invoke(caller, (function, *arguments), keywords)
    if type(caller) in DELEGATING_TYPES:
        return machine.invoke(bind(caller, function), arguments, keywords)
    if issubclass(type(function), functools.partial):
        return call_partial(machine, function, arguments, keywords)
    return machine.call_native(function, arguments, keywords)
