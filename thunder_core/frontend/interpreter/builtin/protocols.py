"""Protocol functions such as `len`, `iter` and `next`, and the functions of the `operator` module."""

import _abc  # type: ignore[import-not-found]
import abc
import operator
from collections.abc import Callable
from types import UnionType
from typing import Any

from thunder_core.frontend.interpreter import bridges, operators, texts
from thunder_core.frontend.interpreter.calls import REPLACEMENTS, Arguments, Keywords, replaces
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import python_method


@replaces(len)
def length(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `len(value)`."""
    if keywords or len(arguments) != 1 or python_method(type(arguments[0]), "__len__") is None:
        return machine.call_unreported(function, arguments, keywords)
    return operators.length(machine, arguments[0])


@replaces(bool, operator.truth)
def truth(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `bool(value)`."""
    if keywords or len(arguments) != 1:
        return machine.call_unreported(function, arguments, keywords)
    return operators.truth(machine, arguments[0])


@replaces(operator.not_)
def negation(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Return `not value`."""
    if keywords or len(arguments) != 1:
        return machine.call_unreported(function, arguments, keywords)
    return not operators.truth(machine, arguments[0])


@replaces(iter)
def iterate(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `iter(value)` or `iter(function, sentinel)`."""
    if keywords or len(arguments) not in (1, 2):
        return machine.call_unreported(function, arguments, keywords)
    if len(arguments) == 2:
        return function(bridges.callback(machine, arguments[0]), arguments[1])
    if python_method(type(arguments[0]), "__iter__") is None:
        return machine.call_unreported(function, arguments, keywords)
    return operators.iterate(machine, arguments[0])


@replaces(next)
def advance(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `next(iterator[, default])`."""
    if keywords or len(arguments) not in (1, 2) or python_method(type(arguments[0]), "__next__") is None:
        return machine.call_unreported(function, arguments, keywords)
    if len(arguments) == 2:
        return operators.advance(machine, *arguments)
    return operators.next_of(machine, arguments[0])


@replaces(str, repr, ascii)
def convert(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `str(value)`, `repr(value)` or `ascii(value)`."""
    if keywords or len(arguments) != 1:
        return machine.call_unreported(function, arguments, keywords)
    return texts.convert(machine, function, arguments[0])


@replaces(format)
def call_format(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `format(value[, specification])`."""
    if keywords or len(arguments) not in (1, 2) or python_method(type(arguments[0]), "__format__") is None:
        return machine.call_unreported(function, arguments, keywords)
    specification = arguments[1] if len(arguments) == 2 else ""
    if not isinstance(specification, str):
        return machine.call_unreported(function, arguments, keywords)
    return texts.apply_format(machine, arguments[0], specification)


@replaces(isinstance, issubclass)
def check_class(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `isinstance(value, kind)` or `issubclass(kind, base)`."""
    if keywords or len(arguments) != 2:
        return machine.call_unreported(function, arguments, keywords)
    value, kinds = arguments
    if function is isinstance and type(value) is kinds:
        return True
    if type(kinds) is type:
        return machine.call_unreported(function, arguments, keywords)
    if issubclass(type(kinds), tuple | UnionType):
        bases = kinds.__args__ if isinstance(kinds, UnionType) else kinds
        return any(check_class(machine, function, (value, base), keywords) for base in bases)
    method = python_method(type(kinds), "__instancecheck__" if function is isinstance else "__subclasscheck__")
    if method is None:
        return machine.call_unreported(function, arguments, keywords)
    return operators.truth(machine, machine.invoke(method, (kinds, value), {}))


@replaces(_abc._abc_instancecheck)
def check_abstract(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call the C part of `ABCMeta.__instancecheck__`, which would call `__subclasscheck__` natively."""
    if keywords or len(arguments) != 2:
        return machine.call_unreported(function, arguments, keywords)
    kind, value = arguments
    method = python_method(type(kind), "__subclasscheck__")
    if method is None or method is abc.ABCMeta.__dict__["__subclasscheck__"]:
        return function(kind, value)
    claimed = machine.load_attr(value, "__class__")
    result = machine.invoke(method, (kind, claimed), {})
    if type(value) is claimed or operators.truth(machine, result):
        return result
    return machine.invoke(method, (kind, type(value)), {})


def _operator_route(step: Callable[..., Any], count: int) -> Any:
    """Return a replacement for a C function of `operator` with `count` operands."""

    def call_operator(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        if keywords or len(arguments) != count:
            return machine.call_unreported(function, arguments, keywords)
        return step(machine, function, *arguments)

    return call_operator


REPLACEMENTS.update(dict.fromkeys(operators.BINARY, _operator_route(operators.binary, 2)))
REPLACEMENTS.update(dict.fromkeys(operators.COMPARISONS, _operator_route(operators.compare, 2)))
REPLACEMENTS.update(dict.fromkeys(operators.UNARY, _operator_route(operators.unary, 1)))
REPLACEMENTS[operator.contains] = _operator_route(lambda machine, _, *both: operators.contains(machine, *both), 2)
