"""A static check whether a function of the program may have effects, so that it must not be called a second time.

The check reads the bytecode of the function and of the Python functions that it refers to by global names. In doubt, it
reports an effect: a function that writes to a local array passes, and a function that refers to a global list does not.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator, Mapping
from functools import cache

from thunder_core.foundation.package import package_of
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.draws import process_generators

WRITES_AND_YIELDS = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL", "YIELD_VALUE", "SEND"})
EFFECTFUL_BUILTINS = frozenset(
    ("breakpoint", "delattr", "eval", "exec", "globals", "input", "open", "print", "setattr", "vars")
)
# Libraries whose functions change only the state of the process's random generators, which the prologue replays.
NUMERIC_LIBRARIES = frozenset(("numpy", "random", "math", "itertools", "operator"))
PYTORCH = "torch"


def may_have_effects(function: types.FunctionType) -> bool:
    """Whether a call of a function may write to an object that existed before the call, or print."""
    return _reaches_effect(function, set())


def _reaches_effect(function: types.FunctionType, visited: set[types.CodeType]) -> bool:
    code = function.__code__
    if code in visited:
        return False
    visited.add(code)
    if code.co_freevars or any(map(writes_or_yields, codes_of(code))):
        return True
    names = frozenset(name for inner in codes_of(code) for name in inner.co_names)
    values = _values_of_names(function.__globals__, names)
    return any(_is_effectful(value, visited) for value in values) or bool(
        names & EFFECTFUL_BUILTINS - function.__globals__.keys()
    )


def _values_of_names(namespace: Mapping[str, object], names: frozenset[str]) -> Iterator[object]:
    """Yield the values that names have in a namespace, and in the modules and classes among these values."""
    for name in names & namespace.keys():
        value = namespace[name]
        yield value
        if isinstance(value, types.ModuleType | type) and not _is_of_numeric_library(value):
            yield from _values_of_names(vars(value), names - {name})


def _is_effectful(value: object, visited: set[types.CodeType]) -> bool:
    """Whether using a global value may have effects: it is a mutable object, of PyTorch, or a function with effects."""
    if belongs_to_torch(value):
        return True
    if isinstance(value, types.FunctionType):
        return not _is_of_numeric_library(value) and _reaches_effect(value, visited)
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return not (_is_of_numeric_library(value) or owner is builtins)
        return not any(owner is generator for generator in process_generators())
    return not (isinstance(value, types.ModuleType | type) or is_constant(value))


def _is_of_numeric_library(value: object) -> bool:
    """Whether a module, class or function belongs to one of `NUMERIC_LIBRARIES`."""
    return _library_of(value) in NUMERIC_LIBRARIES


def belongs_to_torch(value: object) -> bool:
    """Whether a value is PyTorch itself, or one of its modules, functions or classes."""
    return _library_of(value) == PYTORCH


def _library_of(value: object) -> str:
    """Return the top-level package of a module, or of the module that defines a class or function."""
    home = value.__name__ if isinstance(value, types.ModuleType) else callable_attribute(value, "__module__")
    return package_of(home)


def is_name_of_torch(module: object) -> bool:
    """Whether the name of a module is `torch`, or begins with `torch.`."""
    return package_of(module) == PYTORCH


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@cache
def writes_or_yields(code: types.CodeType) -> bool:
    """Whether a function writes to attributes or globals, imports a module with unknown code, or is a generator."""
    return any(
        instruction.opname in WRITES_AND_YIELDS
        or (instruction.opname == "IMPORT_NAME" and package_of(instruction.argval) not in NUMERIC_LIBRARIES)
        for instruction in dis.get_instructions(code)
    )
