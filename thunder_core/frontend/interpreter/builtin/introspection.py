"""Replacements for C functions that use their caller's frame: `globals`, `locals`, `exec`, `super` and others."""

import __future__

import _typing  # type: ignore[import-not-found]
import contextlib
import sys
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter import bridges, operators, recursion
from thunder_core.frontend.interpreter.calls import Arguments, Keywords, call_class, call_in_globals, replaces
from thunder_core.frontend.interpreter.frame import Frame, Machine
from thunder_core.frontend.interpreter.introspection import locals_of
from thunder_core.frontend.interpreter.native import UNBOUND

_FUTURE_FLAGS = sum(
    {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name != "nested_scopes"}
)


def caller(machine: Machine) -> Frame:
    """Return the innermost interpreted frame, which calls the builtin."""
    frame = machine.frame
    if frame is None:
        raise SystemError("no interpreted frame is running")
    return frame


@replaces(globals)
def global_names(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `globals()`."""
    return machine.call_unreported(function, arguments, keywords) if arguments or keywords else caller(machine).globals


@replaces(locals)
def local_names_of_caller(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `locals()`."""
    return (
        machine.call_unreported(function, arguments, keywords) if arguments or keywords else locals_of(caller(machine))
    )


@replaces(vars)
def variables(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `vars([owner])`: return the caller's variables, or the `__dict__` of the owner."""
    if keywords or len(arguments) > 1:
        return machine.call_unreported(function, arguments, keywords)
    if not arguments:
        return locals_of(caller(machine))
    with contextlib.suppress(AttributeError):
        return machine.load_attr(arguments[0], "__dict__")
    raise TypeError("vars() argument must have __dict__ attribute")


@replaces(dir)
def names_in(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `dir([owner])`."""
    if arguments or keywords:
        return machine.call_unreported(function, arguments, keywords)
    names = keys_of(machine, locals_of(caller(machine)))
    return machine.call_unreported(sorted, (names,), {})


def keys_of(machine: Machine, mapping: object) -> list[Any]:
    """Return the keys of a mapping, from the method `keys` if the class is not exactly dict."""
    if type(mapping) is dict:
        return list(mapping)
    keys = machine.invoke(machine.load_attr(mapping, "keys"), (), {})
    try:
        iterator = operators.iterate(machine, keys)
    except TypeError:
        iterator = None
    if iterator is None:
        owner, kind = type(mapping).__name__, type(keys).__name__
        raise TypeError(f"{owner}.keys() returned a non-iterable (type {kind})")
    names: list[Any] = bridges.gather(machine, list, iterator)
    return names


@replaces(sys._getframe)
def get_frame(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `sys._getframe([depth])`."""
    depth = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], int) else 0
    if keywords or len(arguments) > 1 or (arguments and not isinstance(arguments[0], int)):
        return machine.call_unreported(function, arguments, keywords)
    frame = caller(machine).publish()
    for _ in range(depth):
        back = frame.f_back
        if back is None:
            raise ValueError("call stack is not deep enough")
        frame = back
    return frame


@replaces(sys.getrecursionlimit)
def get_recursion_limit(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `sys.getrecursionlimit()`."""
    return machine.call_unreported(function, arguments, keywords) if arguments or keywords else recursion.limit()


@replaces(sys.setrecursionlimit)
def set_recursion_limit(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `sys.setrecursionlimit(limit)`."""
    if keywords or len(arguments) != 1 or not isinstance(arguments[0], int) or arguments[0] < 1:
        return machine.call_unreported(function, arguments, keywords)
    limit = arguments[0]
    if machine.depth >= limit:
        raise RecursionError(
            f"cannot set the recursion limit to {limit} at the recursion depth {machine.depth}: the limit is too low"
        )  # fmt: skip
    recursion.set_limit(limit)
    machine.limit = limit
    return None


@replaces(compile)
def compile_source(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `compile(...)`, which inherits future statements from the interpreted caller."""
    arguments, keywords = machine.arguments_for_c(function, arguments, keywords)
    parameters = dict(zip(("source", "filename", "mode", "flags", "dont_inherit", "optimize"), arguments, strict=False))
    if len(arguments) > 6 or parameters.keys() & keywords.keys():
        return machine.call_unreported(function, arguments, keywords)
    parameters.update(keywords)
    if not parameters.get("dont_inherit") and isinstance(parameters.get("flags", 0), int):
        parameters["flags"] = parameters.get("flags", 0) | (caller(machine).code.co_flags & _FUTURE_FLAGS)
    parameters["dont_inherit"] = True
    return function(**parameters)


# `exec` and `eval` accept their namespaces as keywords since Python 3.13.
_NAMESPACES = ("globals", "locals") if sys.version_info >= (3, 13) else ()
_KEYWORD_NAMES = {exec: {*_NAMESPACES, "closure"}, eval: {*_NAMESPACES}}


def _namespaces(frame: Frame, arguments: Arguments, keywords: Keywords) -> tuple[Any, Any]:
    """Return the globals and locals in which `exec` and `eval` run."""
    named = dict(zip(("globals", "locals"), arguments[1:], strict=False)) | keywords
    global_names, names = named.get("globals"), named.get("locals")
    if global_names is None:
        return frame.globals, locals_of(frame) if names is None else names
    return global_names, global_names if names is None else names


@replaces(exec, eval)
def run_source(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `exec(source, globals, locals)` or `eval(...)`, and interpret the source."""
    frame = caller(machine)
    arguments = (*machine.arguments_for_c(compile, arguments[:1], {})[0], *arguments[1:])
    closure = keywords.get("closure")
    names_given = {"source", *("globals", "locals")[: len(arguments) - 1]}
    if not 1 <= len(arguments) <= 3 or keywords.keys() - _KEYWORD_NAMES[function] or keywords.keys() & names_given:
        return machine.call_unreported(function, arguments, keywords)
    names, local = _namespaces(frame, arguments, keywords)
    source = arguments[0]
    if not isinstance(names, dict) or not hasattr(type(local), "__getitem__"):
        return machine.call_unreported(function, arguments, keywords)
    if not dict.__contains__(names, "__builtins__"):  # C code bypasses the methods of a subclass
        machine.invoke(dict.__setitem__, (names, "__builtins__", frame.builtins), {})
    if not isinstance(source, CodeType):
        if closure is not None or not isinstance(source, str | bytes | bytearray | memoryview):
            return machine.call_unreported(function, arguments, keywords)
        if function is eval:
            source = source.lstrip(" \t") if isinstance(source, str) else bytes(source).lstrip(b" \t")
        code = compile(source, "<string>", function.__name__, frame.code.co_flags & _FUTURE_FLAGS, dont_inherit=True)
    else:
        code = source
        if len(code.co_freevars) != len(closure or ()) or not _is_closure(closure):
            return machine.call_unreported(function, arguments, keywords)
    value = machine.run_code(code, names, local, closure or ())
    return value if function is eval else None


def _is_closure(closure: object) -> bool:
    """Whether an object may be the closure of code: None, or a tuple of cells."""
    return closure is None or (isinstance(closure, tuple) and all(isinstance(cell, CellType) for cell in closure))


@replaces(super)
def super_of_caller(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `super(...)`. Without arguments, use the class and the first argument of the interpreted caller."""
    if arguments or keywords:
        return machine.call_unreported(function, arguments, keywords)
    return super(*super_arguments(caller(machine)))


def super_arguments(frame: Frame) -> tuple[type, Any]:
    """Return the arguments of `super()` in a frame: the class whose body has the function, and its first argument."""
    if not frame.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    owner = frame.fast[0]
    if isinstance(owner, CellType) and 0 in frame.program.cells:
        owner = owner.cell_contents if owner != CellType() else UNBOUND
    if owner is UNBOUND:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in frame.code.co_freevars:
        raise RuntimeError("super(): __class__ cell not found")
    cell = frame.fast[frame.program.first_free + frame.code.co_freevars.index("__class__")]
    if cell == CellType():
        raise RuntimeError("super(): empty __class__ cell")
    kind = cell.cell_contents
    if not isinstance(kind, type):
        raise RuntimeError(f"super(): __class__ is not a type ({type(kind).__name__})")
    return kind, owner


@replaces(type)
def type_of(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `type(value)`, or make a new class whose module is the caller's."""
    if len(arguments) == 1 and not keywords:
        return type(arguments[0])
    return call_in_globals(machine, function, arguments, keywords)


_TYPE_VARIABLES = [
    getattr(_typing, name)
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "TypeAliasType")
    if hasattr(_typing, name)
]


@replaces(type.__new__, FunctionType, *_TYPE_VARIABLES)
def new_type(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `type.__new__`, `FunctionType` or `TypeVar`, so that the result has the caller's module and builtins."""
    return call_in_globals(machine, function, arguments, keywords)


@replaces(type.__call__)
def call_type(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `type.__call__(kind, ...)`, which makes an instance."""
    if not arguments or not isinstance(arguments[0], type) or arguments[0] is type:
        return machine.call_unreported(function, arguments, keywords)
    return call_class(machine, arguments[0], arguments[1:], keywords)


def module_of_frame(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `sys._getframemodulename([depth])` of Python 3.12 and later."""
    depth = keywords.get("depth", arguments[0] if arguments else 0)
    if len(arguments) > 1 or keywords.keys() - {"depth"} or not isinstance(depth, int):
        return machine.call_unreported(function, arguments, keywords)
    frame: FrameType | None = caller(machine).publish()
    for _ in range(depth):
        frame = None if frame is None else frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


if hasattr(sys, "_getframemodulename"):
    replaces(sys._getframemodulename)(module_of_frame)
