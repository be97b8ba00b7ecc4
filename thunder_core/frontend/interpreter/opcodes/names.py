"""Variables: local, global, named in a namespace, and in cells.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from types import CellType
from typing import Any

from thunder_core.frontend.interpreter import namespaces
from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.operators import contains, delete_item, get_item, set_item
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import opcode


@opcode("LOAD_FAST", "LOAD_CLOSURE")
def load_fast(frame: Frame, slot: int) -> None:
    """[] -> [local]."""
    value = frame.fast[slot]
    if value is UNBOUND:
        namespaces.raise_unbound(frame, slot)
    frame.stack.append(value)


@opcode("STORE_FAST")
def store_fast(frame: Frame, slot: int) -> None:
    """[value] -> []; local = value."""
    frame.fast[slot] = frame.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, slot: int) -> None:
    """[] -> []; del local."""
    if frame.fast[slot] is UNBOUND:
        namespaces.raise_unbound(frame, slot)
    frame.fast[slot] = UNBOUND


def _global(context: DecodingContext, argument: int) -> tuple[str, bool]:
    """Return the name, and whether a NULL is pushed next to the value, for a call."""
    return context.code.co_names[argument >> 1], bool(argument & 1)


@opcode("LOAD_GLOBAL", prepare=_global)
def load_global(frame: Frame, argument: tuple[str, bool]) -> None:
    """[] -> [(NULL), global or builtin]."""
    name, null = argument
    value = namespaces.find_global(frame, name)
    if null:
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("STORE_GLOBAL")
def store_global(frame: Frame, name: str) -> None:
    """[value] -> []; global = value."""
    frame.machine.store_global(frame, name, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def delete_global(frame: Frame, name: str) -> None:
    """[] -> []; del global."""
    frame.machine.delete_global(frame, name)


@opcode("LOAD_NAME")
def load_name(frame: Frame, name: str) -> None:
    """[] -> [value of the name in the namespace, the globals or the builtins]."""
    names = frame.names
    is_global = type(names) is dict and names is frame.globals
    value = NULL if is_global else load_from_namespace(frame, names, name)
    frame.stack.append(load_outside_namespace(frame, name) if value is NULL else value)


def load_outside_namespace(frame: Frame, name: str) -> Any:
    """Return the global or builtin with a name that the namespace lacks."""
    return frame.machine.load_global(frame, name, namespaces.find_outside_namespace)


def load_from_namespace(frame: Frame, names: object, name: str) -> Any:
    """Return the value of a name in a namespace; NULL if it is missing."""
    if names is None:
        raise SystemError(f"no locals when loading {name!r}")
    if type(names) is dict and not contains(frame.machine, names, name):
        return NULL
    try:
        return get_item(frame.machine, names, name)
    except KeyError:
        return NULL


@opcode("STORE_NAME")
def store_name(frame: Frame, name: str) -> None:
    """[value] -> []; the namespace's name = value."""
    names, value = frame.names, frame.stack.pop()
    if type(names) is dict and names is frame.globals:
        frame.machine.store_global(frame, name, value)
    else:
        set_item(frame.machine, names, name, value)


@opcode("DELETE_NAME")
def delete_name(frame: Frame, name: str) -> None:
    """[] -> []; del the namespace's name."""
    names = frame.names
    if type(names) is dict and names is frame.globals:
        frame.machine.delete_global(frame, name)
    elif not _try_delete(frame, names, name):
        namespaces.raise_undefined(name)


def _try_delete(frame: Frame, names: object, name: str) -> bool:
    """Delete a name from a namespace. Like CPython, treat every error of the mapping as a missing name."""
    try:
        delete_item(frame.machine, names, name)
    except BaseException:
        return False
    return True


@opcode("MAKE_CELL")
def make_cell(frame: Frame, slot: int) -> None:
    """[] -> []; a local of an inlined comprehension becomes a cell. Other cells are made with the frame."""
    value = frame.fast[slot]
    frame.fast[slot] = CellType() if value is UNBOUND else CellType(value)


@opcode("LOAD_DEREF")
def load_deref(frame: Frame, slot: int) -> None:
    """[] -> [contents of the cell]."""
    frame.stack.append(namespaces.cell_contents(frame, slot))


@opcode("STORE_DEREF")
def store_deref(frame: Frame, slot: int) -> None:
    """[value] -> []; cell = value."""
    frame.fast[slot].cell_contents = frame.stack.pop()


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, slot: int) -> None:
    """[] -> []; empty the cell."""
    namespaces.cell_contents(frame, slot)
    del frame.fast[slot].cell_contents


@opcode("LOAD_CLASSDEREF")
def load_classderef(frame: Frame, slot: int) -> None:
    """[] -> [value of the name in the class's namespace, otherwise the contents of the cell]."""
    value = load_from_namespace(frame, frame.names, frame.program.names[slot])
    if value is not NULL:
        frame.stack.append(value)
    else:
        frame.stack.append(frame.machine.load_deref(frame, slot))


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(frame: Frame, _argument: object) -> None:
    """[] -> []; the namespace gets a dictionary `__annotations__` if it has none."""
    if load_from_namespace(frame, frame.names, "__annotations__") is NULL:
        set_item(frame.machine, frame.names, "__annotations__", {})
