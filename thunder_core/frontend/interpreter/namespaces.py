"""Names: globals, builtins and the namespaces of class bodies, with the errors that CPython raises."""

import builtins
from types import CellType, ModuleType
from typing import Any, NoReturn

from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.operators import get_item


def builtins_of(global_names: dict[str, Any]) -> Any:
    """Return the builtins of code with these globals: a dictionary, or the object that `__builtins__` names."""
    names = dict.get(global_names, "__builtins__", builtins)
    return names.__dict__ if isinstance(names, ModuleType) else names


def find_global(frame: Frame, name: str) -> Any:
    """Return the value that LOAD_GLOBAL finds. If globals or builtins are not exactly a dict, `[]` reads them."""
    if type(frame.globals) is not dict or type(frame.builtins) is not dict:
        return _first_item(frame, (frame.globals, frame.builtins), name)
    value = frame.globals.get(name, NULL)
    return find_builtin(frame, name) if value is NULL else value


def find_outside_namespace(frame: Frame, name: str) -> Any:
    """Return the global or builtin that LOAD_NAME finds for a name that the namespace lacks.

    Globals are read as a plain dictionary, even if their class overrides `__getitem__`.
    """
    value = dict.get(frame.globals, name, NULL)
    return find_builtin(frame, name) if value is NULL else value


def find_builtin(frame: Frame, name: str) -> Any:
    """Return the builtin with a name; raise NameError if there is none."""
    if type(frame.builtins) is not dict:
        return _first_item(frame, (frame.builtins,), name)
    value = frame.builtins.get(name, NULL)
    return raise_undefined(name) if value is NULL else value


def _first_item(frame: Frame, mappings: tuple[Any, ...], name: str) -> Any:
    """Return the item with a name from the first mapping whose `[]` raises no KeyError."""
    for names in mappings:
        try:
            return get_item(frame.machine, names, name)
        except KeyError:
            pass
    return raise_undefined(name)


def raise_undefined(name: str) -> NoReturn:
    """Raise the NameError for a name that is not defined."""
    raise NameError(f"name {name!r} is not defined", name=name)


def raise_unbound_local(name: str) -> NoReturn:
    """Raise the error for a local variable without a value."""
    raise UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")


def raise_unbound_free(name: str) -> NoReturn:
    """Raise the error for a free variable without a value."""
    message = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
    raise NameError(message, name=name)


def raise_unbound(frame: Frame, slot: int) -> NoReturn:
    """Raise the error for a local, cell or free variable without a value."""
    name = frame.program.names[slot]
    if slot >= frame.program.first_free:
        raise_unbound_free(name)
    raise_unbound_local(name)


def cell_contents(frame: Frame, slot: int) -> Any:
    """Return the value in a cell; raise NameError if the cell is empty."""
    cell: CellType = frame.fast[slot]
    try:
        return cell.cell_contents
    except ValueError:
        pass
    return raise_unbound(frame, slot)
