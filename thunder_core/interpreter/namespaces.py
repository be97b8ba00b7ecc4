"""Names: globals, builtins and the namespaces of class bodies, with the errors that CPython raises."""

import builtins
from types import CellType, ModuleType
from typing import Any, NoReturn

from thunder_core.interpreter.frame import Frame


def builtins_of(global_names: dict[str, Any]) -> dict[str, Any]:
    """The builtins that code with these globals sees."""
    found = global_names.get("__builtins__", builtins)
    names: dict[str, Any] = found.__dict__ if isinstance(found, ModuleType) else found
    return names


def missing_global(frame: Frame, name: str) -> Any:
    """A name that neither dictionary holds: a subclass of dict may know it yet."""
    for names in (frame.globals, frame.builtins):
        if type(names) is not dict:
            try:
                return names[name]
            except KeyError:
                pass
    return undefined(name)


def undefined(name: str) -> NoReturn:
    """Raise the NameError of a name that is nowhere."""
    raise NameError(f"name {name!r} is not defined", name=name)


def unbound_local(name: str) -> NoReturn:
    """Raise the error of a local variable that has no value."""
    raise UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")


def unbound_free(name: str) -> NoReturn:
    """Raise the error of a free variable that has no value."""
    message = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
    raise NameError(message, name=name)


def unbound_slot(frame: Frame, slot: int) -> NoReturn:
    """Raise the error of a local, cell or free variable that has no value."""
    name = frame.program.names[slot]
    if slot >= frame.program.first_free:
        unbound_free(name)
    unbound_local(name)


def contents(frame: Frame, slot: int) -> Any:
    """The value in a cell; NameError if it is empty."""
    cell: CellType = frame.fast[slot]
    try:
        return cell.cell_contents
    except ValueError:
        pass
    return unbound_slot(frame, slot)
