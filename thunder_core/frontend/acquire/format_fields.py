"""Fields of templates that read attributes or items, such as `"{0.name}"`: the interpreter makes these reads."""

from __future__ import annotations

import operator
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thunder_core.frontend.interpreter.frame import Machine

split_name = string._string.formatter_field_name_split  # type: ignore[attr-defined]  # a C module
Fields = list[tuple[str, str | None, str | None, str | None]]


def with_values(machine: Machine, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the template with numbered fields, and the values of the fields: `"{0}"` and `[a.name]` for `"{0.name}"`.

    Return None if C code must format the template, because it is invalid or nested, or because an argument is missing.
    Also returns None if no field reads an attribute or an item.
    """
    try:
        fields: Fields = list(string.Formatter().parse(template))
    except ValueError:
        return None
    names = [name for _, name, _, _ in fields if name is not None]
    nested = any("{" in (specification or "") for _, _, specification, _ in fields)
    if nested or not any("." in name or "[" in name for name in names):
        return None
    counted = 0
    values: list[Any] = []
    for name in names:
        first, steps = split_name(name)
        if first == "":
            first, counted = counted, counted + 1
        try:
            value = args[first] if isinstance(first, int) else kwargs[first]
        except (LookupError, TypeError):
            return None
        values.append(read(machine, value, steps))
    return "".join(map(text_of, fields, positions_of(fields))), values


def read(machine: Machine, value: object, steps: Iterable[tuple[bool, str | int]]) -> Any:
    """Return the value that the steps of a field lead to."""
    for is_attribute, key in steps:
        value = machine.call(getattr if is_attribute else operator.getitem, value, key)
    return value


def positions_of(fields: Fields) -> list[int]:
    """Return, for each field, the position of its value among the values of all fields."""
    positions, position = [], 0
    for _, name, _, _ in fields:
        positions.append(position)
        position += name is not None
    return positions


def text_of(field: tuple[str, str | None, str | None, str | None], position: int) -> str:
    """Return the literal text before a field, and the text of the field with the position of its value as its name."""
    before, name, specification, conversion = field
    literal = before.replace("{", "{{").replace("}", "}}")
    if name is None:
        return literal
    convert = f"!{conversion}" if conversion else ""
    return f"{literal}{{{position}{convert}{':' + specification if specification else ''}}}"
