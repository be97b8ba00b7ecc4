"""The operations of a `match` statement on its subject."""

import sys
from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Machine
from thunder_core.frontend.interpreter.lookup import type_name

# Flags of classes (`type.__flags__`): sequences, mappings, and classes such as `int`, whose single positional
# sub-pattern matches the subject itself.
SEQUENCE_FLAG, MAPPING_FLAG, MATCH_SELF_FLAG = 1 << 5, 1 << 6, 1 << 22
NOT_A_CLASS = f"called match pattern must be a {'class' if sys.version_info >= (3, 12) else 'type'}"


def match_keys(machine: Machine, subject: object, keys: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the values under the keys, or None if a key is missing."""
    seen: set[Any] = set()
    values: list[Any] = []
    get = None
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        if get is None:
            get = machine.load_attr(subject, "get")
        value = machine.invoke(get, (key, NULL), {})
        if value is NULL:
            return None
        values.append(value)
    return tuple(values)


def match_class(
    machine: Machine, subject: object, kind: object, positional_count: int, names: tuple[str, ...]
) -> tuple[Any, ...] | None:
    """Return the attributes that a class pattern extracts, or None if the pattern does not match.

    `positional_count` is the number of positional sub-patterns, and `names` are the attributes of the keyword
    sub-patterns.
    """
    if not isinstance(kind, type):
        raise TypeError(NOT_A_CLASS)
    if not machine.invoke(isinstance, (subject, kind), {}):
        return None
    seen: set[str] = set()
    values: list[Any] = []
    if positional_count:
        positional = _positional_names(machine, kind)
        allowed = 1 if positional is None else len(positional)
        if allowed < positional_count:
            plural = "" if allowed == 1 else "s"
            raise TypeError(
                f"{type_name(kind)}() accepts {allowed} positional sub-pattern{plural} ({positional_count} given)"
            )
        if positional is None:
            values.append(subject)
        else:
            for name in positional[:positional_count]:
                if type(name) is not str:
                    raise TypeError(f"__match_args__ elements must be strings (got {type_name(type(name))})")
                value = _attribute(machine, subject, kind, name, seen)
                if value is NULL:
                    return None
                values.append(value)
    for name in names:
        value = _attribute(machine, subject, kind, name, seen)
        if value is NULL:
            return None
        values.append(value)
    return tuple(values)


def _positional_names(machine: Machine, kind: type) -> tuple[Any, ...] | None:
    """Return `__match_args__`, or an empty tuple if the class has none.

    Returns None for a class whose single positional sub-pattern matches the subject itself.
    """
    try:
        match_args = machine.load_attr(kind, "__match_args__")
    except AttributeError:
        return None if kind.__flags__ & MATCH_SELF_FLAG else ()
    if type(match_args) is not tuple:
        raise TypeError(f"{type_name(kind)}.__match_args__ must be a tuple (got {type_name(type(match_args))})")
    machine.announce_iteration(match_args)
    return match_args


def _attribute(machine: Machine, subject: object, kind: type, name: str, seen: set[str]) -> Any:
    """Return an attribute of the subject; NULL if the subject has no such attribute."""
    if name in seen:
        raise TypeError(f"{type_name(kind)}() got multiple sub-patterns for attribute {name!r}")
    seen.add(name)
    try:
        return machine.load_attr(subject, name)
    except AttributeError:
        return NULL
