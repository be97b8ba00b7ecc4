"""Lookups of symbolic numbers in containers.

A guard requires that the number equals a key, or equals none of the keys, as guards of comparisons do. So there is one
program for each key, and one program for all numbers that are not keys. If the container hashed the number instead, its
value would be guarded, and each value would need its own program.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any

from thunder_core.frontend.acquire.outside.call_traits import is_plain_mapping
from thunder_core.frontend.acquire.outside.containers import split_method_call
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText, TextPart

LOOKUPS = frozenset({"get", "__contains__"})  # methods of containers that look a key up
MAX_KEYS = 32  # maximum keys with a guard for each; with more, a program for each value costs less
NUMBERS = (int, float, bool)
# Classes of keys that equal no number, and of which only `str` can equal a text.
NOT_NUMBERS = (str, bytes, type(None), tuple, frozenset, type)
SETS: tuple[type, ...] = (set, frozenset, type({}.keys()))
CONVERSIONS = (str, repr, format)
INTEGER = re.compile(r"0|-?[1-9]\d*")


def settle_lookup(run: TracedRun, container: object, key: object) -> bool:
    """Compare a symbolic number, or a text that contains one, with each key of a container, and guard the outcomes.

    Return True if the number (or text) equals no key: the container then looks up this call's value, and that value is
    not guarded. Return False if it equals a key, or if the lookup is not handled here.
    """
    if not isinstance(key, SymbolicNumber) and type(key) is not SymbolicText:
        return False
    keys = known_keys(container, key)
    equal_key = None if keys is None else equal_numbers(keys, key)
    if equal_key is None or equal_key[0].source is None or run.outside.is_functional:
        return False
    number, candidates = equal_key
    run.outside.expand_keys(container)
    if any(number.numbers.decide(operator.eq, (number, candidate)) for candidate in candidates):
        return False  # the guard makes the number equal to this key at each call, so the normal lookup follows
    if isinstance(key, SymbolicText):
        key.looked_up = text_in_call(key, number)
    else:
        number.numbers.looked_up = number
    return True


def settle_method(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Compare a key as `settle_lookup` does, for a call of a container's method, and return the result.

    Return False for other calls.
    """
    owner, _, rest, _ = split_method_call(function, args)
    return owner is not None and bool(rest) and not kwargs and settle_lookup(run, owner, rest[0])


def known_keys(container: Any, key: object) -> list[Any] | None:
    """Return the keys of a mapping or members of a set, if they are few and of known classes; otherwise None.

    A list or tuple is covered only if the key is a text. In a list, `in` compares a number with `==`, and this
    comparison is guarded.
    """
    is_list = type(container) in (list, tuple) and type(key) is SymbolicText
    if not is_list and not is_plain_mapping(container) and type(container) not in SETS:
        return None
    keys = list(container)
    return keys if len(keys) <= MAX_KEYS and all(type(item) in (*NUMBERS, *NOT_NUMBERS) for item in keys) else None


def equal_numbers(keys: Iterable[Any], key: Any) -> tuple[SymbolicNumber, list[Any]] | None:
    """Return the symbolic number that a key is or contains, and its values for which the key would equal one of `keys`.

    Return None for a text whose value was already read, that has several symbolic parts, or whose symbolic part is not
    a plain integer.
    """
    if isinstance(key, SymbolicNumber):
        return key, [item for item in keys if type(item) in NUMBERS]
    parts = [part for part in key.parts if not isinstance(part, str)]
    if key.text is not None or len(parts) != 1 or (number := number_of_text(parts[0])) is None:
        return None
    before, behind = map(re.escape, texts_around(key))
    pattern = re.compile(f"{before}({INTEGER.pattern}){behind}", re.DOTALL)
    matches = (pattern.fullmatch(item) for item in keys if type(item) is str)
    return number, [int(match[1]) for match in matches if match is not None]


def number_of_text(part: TextPart) -> SymbolicNumber | None:
    """Return the symbolic integer that a part formats without a format specification; None for other parts."""
    value, *form = part.arguments
    is_plain = part.function in CONVERSIONS and not any(form)
    return value if is_plain and isinstance(value, SymbolicNumber) and value.kind is int else None


def texts_around(text: SymbolicText) -> Iterator[str]:
    """Yield the plain texts before and after the only part of a text that is not plain."""
    index = next(index for index, part in enumerate(text.parts) if not isinstance(part, str))
    for parts in (text.parts[:index], text.parts[index + 1 :]):
        yield "".join(part for part in parts if isinstance(part, str))


def text_in_call(text: SymbolicText, number: SymbolicNumber) -> str:
    """Return the text with the number's value in the traced call.

    The number must have a `source`, the path from which the prologue fetches it.
    """
    before, behind = texts_around(text)
    return f"{before}{number.source.value}{behind}"
