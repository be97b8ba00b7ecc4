"""The operations of a `match` statement on its subject."""

from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Machine

SEQUENCE_FLAG, MAPPING_FLAG = 1 << 5, 1 << 6
# Classes whose only positional pattern is the subject itself (Py_TPFLAGS_MATCH_SELF).
_MATCH_SELF_FLAG = 1 << 22


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
    machine: Machine, subject: object, kind: object, count: int, names: tuple[str, ...]
) -> tuple[Any, ...] | None:
    """Return the attributes that a class pattern extracts, or None if the pattern does not match."""
    if not isinstance(kind, type):
        raise TypeError("called match pattern must be a class")
    if not machine.invoke(isinstance, (subject, kind), {}):
        return None
    seen: set[str] = set()
    values: list[Any] = []
    if count:
        positional = _positional_names(machine, kind)
        allowed = 1 if positional is None else len(positional)
        if allowed < count:
            plural = "" if allowed == 1 else "s"
            raise TypeError(f"{kind.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
        if positional is None:
            values.append(subject)
        else:
            for name in positional[:count]:
                if not isinstance(name, str):
                    raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
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
    """Return `__match_args__`; None if the subject itself is the only positional value."""
    try:
        match_args = machine.load_attr(kind, "__match_args__")
    except AttributeError:
        return None if kind.__flags__ & _MATCH_SELF_FLAG else ()
    if type(match_args) is not tuple:
        raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple (got {type(match_args).__name__})")
    return match_args


def _attribute(machine: Machine, subject: object, kind: type, name: str, seen: set[str]) -> Any:
    """Return an attribute of the subject; NULL if the subject has no such attribute."""
    if name in seen:
        raise TypeError(f"{kind.__name__}() got multiple sub-patterns for attribute {name!r}")
    seen.add(name)
    try:
        return machine.load_attr(subject, name)
    except AttributeError:
        return NULL
