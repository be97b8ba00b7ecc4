"""The class statement: `__build_class__` with an interpreted body."""

import types
from types import CellType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.calls import Arguments, Keywords, replaces
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT


@replaces(__build_class__)
def build_class(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Build a class from the function of its body, its name, its bases and its keywords."""
    if len(arguments) < 2 or type(arguments[0]) is not FunctionType or not isinstance(arguments[1], str):
        return machine.call_unreported(function, arguments, keywords)
    body, name, *bases_given = arguments
    bases = resolve_bases(machine, tuple(bases_given))
    keywords = dict(keywords)
    metaclass = keywords.pop("metaclass", None)
    explicit = metaclass is not None
    if not explicit:
        metaclass = type(bases[0]) if bases else type
    if isinstance(metaclass, type):
        metaclass = most_derived_metaclass(metaclass, bases)
    names = _namespace(machine, metaclass, name, bases, keywords)
    if type_lookup(type(names), "__getitem__") is ABSENT:
        shown = metaclass.__name__ if isinstance(metaclass, type) else "<metaclass>"
        raise TypeError(f"{shown}.__prepare__() must return a mapping, not {type(names).__name__}")
    cell = machine.run_code(
        body.__code__, body.__globals__, names, body.__closure__ or (), body.__builtins__, function=body
    )  # fmt: skip
    if bases != tuple(bases_given):
        operators.set_item(machine, names, "__orig_bases__", tuple(bases_given))
    new_class = machine.invoke(metaclass, (name, bases, names), keywords)
    if isinstance(new_class, type) and type(cell) is CellType:
        _check_cell(cell, new_class, name)
    return new_class


def _namespace(machine: Machine, metaclass: object, name: str, bases: tuple[Any, ...], keywords: Keywords) -> Any:
    """Return the namespace from `metaclass.__prepare__`, or a new dictionary."""
    try:
        prepare = machine.load_attr(metaclass, "__prepare__")
    except AttributeError:
        return {}
    return machine.invoke(prepare, (name, bases), keywords)


def _check_cell(cell: CellType, new_class: type, name: str) -> None:
    """Raise an error unless the `__class__` cell contains the new class."""
    try:
        cell_class = cell.cell_contents
    except ValueError:
        cell_class = ABSENT
    if cell_class is ABSENT:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {new_class!r}. Was __classcell__ propagated to type.__new__?"
        )  # fmt: skip
    if cell_class is not new_class:
        raise TypeError(f"__class__ set to {cell_class!r} defining {name!r} as {new_class!r}")


def resolve_bases(machine: Machine, bases: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the bases; a base that is not a class is replaced by the result of its `__mro_entries__`."""
    if all(isinstance(base, type) for base in bases):
        return bases
    resolved: list[Any] = []
    for base in bases:
        if isinstance(base, type):
            resolved.append(base)
            continue
        try:
            entries = machine.load_attr(base, "__mro_entries__")
        except AttributeError:
            resolved.append(base)
            continue
        replacements = machine.invoke(entries, (bases,), {})
        if not isinstance(replacements, tuple):
            raise TypeError("__mro_entries__ must return a tuple")
        resolved.extend(replacements)
    return tuple(resolved)


def most_derived_metaclass(metaclass: type, bases: tuple[Any, ...]) -> type:
    """Return the most derived metaclass among the given one and those of the bases."""
    return types._calculate_meta(metaclass, bases)  # type: ignore[attr-defined,no-any-return]
