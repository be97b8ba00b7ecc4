"""The class statement: `__build_class__` with an interpreted body."""

import types
from types import CellType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.calls import Arguments, Keywords, replaces
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import ABSENT, type_lookup


@replaces(__build_class__)
def build_class(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Build a class from the function of its body, its name, its bases and its keywords."""
    if len(arguments) < 2 or type(arguments[0]) is not FunctionType or not isinstance(arguments[1], str):
        return machine.natively(function, arguments, keywords)
    body, name, *given = arguments
    bases = resolved_bases(machine, tuple(given))
    keywords = dict(keywords)
    metaclass = keywords.pop("metaclass", None)
    explicit = metaclass is not None
    if not explicit:
        metaclass = type(bases[0]) if bases else type
    if isinstance(metaclass, type):
        metaclass = winner(metaclass, bases)
    names = _namespace(machine, metaclass, name, bases, keywords)
    if type_lookup(type(names), "__getitem__") is ABSENT:
        shown = metaclass.__name__ if isinstance(metaclass, type) else "<metaclass>"
        raise TypeError(f"{shown}.__prepare__() must return a mapping, not {type(names).__name__}")
    cell = machine.run_code(
        body.__code__, body.__globals__, names, body.__closure__ or (), body.__builtins__, function=body
    )  # fmt: skip
    if bases != tuple(given):
        operators.set_item(machine, names, "__orig_bases__", tuple(given))
    made = machine.invoke(metaclass, (name, bases, names), keywords)
    if isinstance(made, type) and type(cell) is CellType:
        _check_cell(cell, made, name)
    return made


def _namespace(machine: Machine, metaclass: Any, name: str, bases: tuple[Any, ...], keywords: Keywords) -> Any:
    """The namespace that `metaclass.__prepare__` gives, or a new dictionary."""
    try:
        prepare = machine.load_attr(metaclass, "__prepare__")
    except AttributeError:
        return {}
    return machine.invoke(prepare, (name, bases), keywords)


def _check_cell(cell: CellType, made: type, name: str) -> None:
    """The `__class__` cell must hold the new class."""
    try:
        held = cell.cell_contents
    except ValueError:
        held = ABSENT
    if held is ABSENT:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to type.__new__?"
        )  # fmt: skip
    if held is not made:
        raise TypeError(f"__class__ set to {held!r} defining {name!r} as {made!r}")


def resolved_bases(machine: Machine, bases: tuple[Any, ...]) -> tuple[Any, ...]:
    """The bases, each that is no class replaced by what its `__mro_entries__` gives."""
    if all(isinstance(base, type) for base in bases):
        return bases
    found: list[Any] = []
    for base in bases:
        if isinstance(base, type):
            found.append(base)
            continue
        try:
            entries = machine.load_attr(base, "__mro_entries__")
        except AttributeError:
            found.append(base)
            continue
        given = machine.invoke(entries, (bases,), {})
        if not isinstance(given, tuple):
            raise TypeError("__mro_entries__ must return a tuple")
        found.extend(given)
    return tuple(found)


def winner(metaclass: type, bases: tuple[Any, ...]) -> type:
    """The most derived metaclass among the given one and those of the bases."""
    return types._calculate_meta(metaclass, bases)  # type: ignore[attr-defined,no-any-return]
