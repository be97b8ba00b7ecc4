"""Functions that read and write attributes by name."""

import operator
from typing import Any

from thunder_core.frontend.interpreter import attributes, operators
from thunder_core.frontend.interpreter.calls import Arguments, Keywords, replaces, replaces_slot
from thunder_core.frontend.interpreter.frame import Machine


@replaces(getattr)
def get(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `getattr(owner, name[, default])`."""
    if keywords or not 2 <= len(arguments) <= 3 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    if len(arguments) == 2:
        return machine.load_attr(arguments[0], arguments[1])
    try:
        return machine.load_attr(arguments[0], arguments[1])
    except AttributeError:
        return arguments[2]


@replaces(hasattr)
def has(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `hasattr(owner, name)`."""
    if keywords or len(arguments) != 2 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    try:
        machine.load_attr(arguments[0], arguments[1])
    except AttributeError:
        return False
    return True


@replaces(setattr)
def put(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `setattr(owner, name, value)`."""
    if keywords or len(arguments) != 3 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    return machine.store_attr(*arguments)


@replaces(delattr)
def remove(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `delattr(owner, name)`."""
    if keywords or len(arguments) != 2 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    return machine.delete_attr(*arguments)


@replaces_slot("__getattribute__")
def generic_get(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `object.__getattribute__(owner, name)`, or the slot of another C class."""
    if keywords or len(arguments) != 2 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    owner, name = arguments
    value = attributes.load_generic(machine, function, owner, name)
    if machine.observer is not None:
        machine.observer.on_load_stored(owner, name, value)
    return value


@replaces_slot("__setattr__")
def generic_put(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `object.__setattr__(owner, name, value)`, or the slot of another C class."""
    if keywords or len(arguments) != 3 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    return attributes.store_generic(machine, function, *arguments)


@replaces_slot("__delattr__")
def generic_remove(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `object.__delattr__(owner, name)`, or the slot of another C class."""
    if keywords or len(arguments) != 2 or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    return attributes.delete_generic(machine, function, *arguments)


@replaces(operator.getitem, operator.setitem, operator.delitem)
def access_item(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `operator.getitem`, `operator.setitem` or `operator.delitem`."""
    step: Any = {
        operator.getitem: operators.get_item,
        operator.setitem: operators.set_item,
        operator.delitem: operators.delete_item,
    }[function]
    if keywords or len(arguments) != (3 if function is operator.setitem else 2):
        return machine.call_unreported(function, arguments, keywords)
    return step(machine, *arguments)
