"""Calls by the kind of what is called: methods, partials, classes, builtins and objects with `__call__`."""

import functools
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import ABSENT, type_lookup

Arguments = Sequence[Any]
Keywords = dict[str, Any]
Route = Callable[[Machine, Any, Arguments, Keywords], Any]

# How to call an instance of a type, and what to do in place of a particular C function or type.
ROUTES: dict[type, Route] = {}
REPLACED: dict[Any, Route] = {}


def route_of(*kinds: type) -> Callable[[Route], Route]:
    """Make a function the way to call instances of these types."""

    def register(route: Route) -> Route:
        ROUTES.update(dict.fromkeys(kinds, route))
        return route

    return register


def replaces(*natives: Any) -> Callable[[Route], Route]:
    """Make a function what runs when the program calls one of these C functions or types."""

    def register(route: Route) -> Route:
        REPLACED.update(dict.fromkeys(natives, route))
        return route

    return register


def route(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call anything but a Python function."""
    kind = type(function)
    found = ROUTES.get(kind)
    if found is not None:
        return found(machine, function, arguments, keywords)
    if issubclass(kind, type):
        return call_metaclass(machine, function, arguments, keywords)
    return call_object(machine, function, arguments, keywords)


@route_of(MethodType)
def call_method(machine: Machine, method: MethodType, arguments: Arguments, keywords: Keywords) -> Any:
    """A bound method is its function with the instance first."""
    if type(arguments) is list:
        arguments.insert(0, method.__self__)
        return machine.invoke_quietly(method.__func__, arguments, keywords)
    return machine.invoke_quietly(method.__func__, (method.__self__, *arguments), keywords)


@route_of(BuiltinFunctionType, type(len), type(str.join), type(object.__init__))
def call_builtin(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """A C function: its replacement if it has one, else natively."""
    replaced = REPLACED.get(function)
    if replaced is None and function.__name__ in _READING_BUILTINS:
        replaced = call_with_builtins
    if replaced is None:
        return machine.call_native(function, arguments, keywords)
    return machine.report_result(function, arguments, keywords, replaced(machine, function, arguments, keywords))


# Methods of C that look for a builtin in their caller: the way to make an iterator again is its `iter` or `reversed`.
_READING_BUILTINS = frozenset({"__reduce__", "__reduce_ex__"})


def call_with_builtins(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call natively, from a native frame whose builtins are those of the interpreted caller."""
    if machine.frame is None:
        return machine.natively(function, arguments, keywords)
    caller = FunctionType(_call.__code__, {"__builtins__": machine.frame.builtins})
    return machine.natively(caller, (function, arguments, keywords), {})


@route_of(type("".__len__))
def call_slot(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """A C slot bound to an instance: as the unbound slot."""
    slot = getattr(function.__objclass__, function.__name__)
    replaced = REPLACED.get(slot)
    if replaced is None:
        return machine.call_native(function, arguments, keywords)
    whole = (function.__self__, *arguments)
    return machine.report_result(function, arguments, keywords, replaced(machine, slot, whole, keywords))


@route_of(functools.partial)
def call_partial(machine: Machine, partial: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """A partial is its function with its arguments first."""
    return machine.invoke(partial.func, (*partial.args, *arguments), {**partial.keywords, **keywords})


@route_of(functools._lru_cache_wrapper)
def call_cached(machine: Machine, cached: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """A function under `functools.lru_cache`."""
    return machine.call_cached(cached, arguments, keywords)


@route_of(type)
def call_class(machine: Machine, kind: type, arguments: Arguments, keywords: Keywords) -> Any:
    """`type.__call__`: the Python-level `__new__` and `__init__` interpreted."""
    replaced = REPLACED.get(kind)
    if replaced is not None:
        return machine.report_result(kind, arguments, keywords, replaced(machine, kind, arguments, keywords))
    new = type_lookup(kind, "__new__")
    made_by = new.__func__ if type(new) is staticmethod else new
    if type(made_by) is FunctionType:
        made = machine.invoke(made_by, (kind, *arguments), keywords)
    elif type(type_lookup(kind, "__init__")) is not FunctionType:
        if issubclass(kind, type):
            return machine.report_result(
                kind, arguments, keywords, call_in_globals(machine, kind, arguments, keywords)
            )  # fmt: skip
        return machine.call_native(kind, arguments, keywords)
    else:
        made = call_in_globals(machine, made_by, (kind, *arguments), keywords)
    if issubclass_natively(type(made), kind):
        initialize(machine, made, arguments, keywords)
    return made


def _call(function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call a function; copied into the caller's globals for those that look there."""
    return function(*arguments, **keywords)


def call_in_globals(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call natively, from a native frame whose globals are those of the interpreted caller."""
    if machine.frame is None or function is object.__new__:
        return function(*arguments, **keywords)
    caller = FunctionType(_call.__code__, machine.frame.globals)
    return machine.natively(caller, (function, arguments, keywords), {})


def initialize(machine: Machine, made: Any, arguments: Arguments, keywords: Keywords) -> None:
    """`__init__` of a new object, as `type.__call__` runs it."""
    init = type_lookup(type(made), "__init__")
    if type(init) is FunctionType:
        result = machine.invoke(init, (made, *arguments), keywords)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    elif type(init) is type(object.__init__):
        machine.natively(init, (made, *arguments), keywords)
    else:
        result = machine.invoke(bound(init, made), arguments, keywords)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")


def issubclass_natively(kind: type, base: type) -> bool:
    """Whether a type derives from another, whatever their metaclasses say."""
    return base in type.__dict__["__mro__"].__get__(kind)


def bound(unbound: Any, owner: Any) -> Any:
    """A special method as it is when it is read from an instance."""
    binder = getattr(type(unbound), "__get__", None)
    return unbound if binder is None else binder(unbound, owner, type(owner))


def call_metaclass(machine: Machine, kind: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """A class whose metaclass is not `type`."""
    caller = type_lookup(type(kind), "__call__")
    if type(caller) is FunctionType:
        return machine.invoke(caller, (kind, *arguments), keywords)
    if caller is type.__call__:
        return call_class(machine, kind, arguments, keywords)
    return machine.call_native(kind, arguments, keywords)


def hands_on(function: Any) -> bool:
    """Whether a call of an object that is no Python function is one of something else, which is announced by itself."""
    kind = type(function)
    if kind in ROUTES:
        return kind in (MethodType, functools.partial)
    caller = type_lookup(kind, "__call__")
    if caller is type.__call__:  # a class whose metaclass is not `type`
        made_by = (type_lookup(function, name) for name in ("__new__", "__init__"))
        return any(type(method) in (FunctionType, staticmethod) for method in made_by)
    return type(caller) in HANDING_ON or issubclass(kind, functools.partial)


HANDING_ON = (FunctionType, staticmethod, classmethod, functools.partial, MethodType)


def call_object(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """An instance of a class that may have a Python-level `__call__`."""
    caller = type_lookup(type(function), "__call__")
    if caller is ABSENT:
        return function()  # CPython's own error: for a module, it may name what was meant
    if type(caller) is FunctionType:
        return machine.invoke(caller, (function, *arguments), keywords)
    if type(caller) in HANDING_ON:
        return machine.invoke(bound(caller, function), arguments, keywords)
    if issubclass(type(function), functools.partial):
        return call_partial(machine, function, arguments, keywords)
    return machine.call_native(function, arguments, keywords)
