"""Lookups of symbolic numbers in containers: which of the keys a number is, if it is any, is an outcome like others.

A program for each value would be traced where a container of C's hashes the number. There are as many programs as there
are keys, and one for all numbers that are no key.
"""

from __future__ import annotations

import bisect
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.call_traits import is_plain_mapping
from thunder_core.frontend.acquire.outside.containers import receiver
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText, TextPart

LOOKUPS = frozenset({"get", "__contains__"})  # methods of containers that look a key up
MOST_KEYS = 32  # with more of them, conditions on each would cost more than programs for values
NUMBERS = (int, float, bool)
# Classes of keys that no number equals, and no text but a `str`.
OTHERS = (str, bytes, type(None), tuple, frozenset, type)
SETS: tuple[type, ...] = (set, frozenset, type({}.keys()))
CONVERSIONS = (str, repr, format)
INTEGER = re.compile(r"0|-?[1-9]\d*")


def settle_lookup(acquisition: TracedRun, container: Any, key: Any) -> bool:
    """Find out whether a symbolic number, or a text of one, is a key of a container; each comparison is guarded.

    Where it is none, the container is asked by the value of this call, which need not be guarded. False for lookups of
    other keys, or in other containers.
    """
    if not isinstance(key, SymbolicNumber) and type(key) is not SymbolicText:
        return False
    keys = known_keys(container, key)
    found = None if keys is None else equal_numbers(keys, key)
    if found is None or found[0].source is None or acquisition.outside.surprises is not None:
        return False
    number, candidates = found
    acquisition.outside.expand_keys(container)
    if any(number.numbers.decide(operator.eq, (number, one)) for one in candidates):
        return False  # its value is that of the key, at each call
    if isinstance(key, SymbolicText):
        key.looked_up = value_in_call(key, number)
    else:
        number.numbers.looked_up = number
    return True


def settle_method(acquisition: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a container's method is a lookup of a symbolic number that is settled."""
    owner, _, rest, _ = receiver(function, args)
    return owner is not None and bool(rest) and not kwargs and settle_lookup(acquisition, owner, rest[0])


def known_keys(container: Any, key: Any) -> list[Any] | None:
    """The keys of a mapping or members of a set, if they are few and of known classes; else None.

    A list compares its items with a number by itself.
    """
    is_list = type(container) in (list, tuple) and type(key) is SymbolicText
    if not is_list and not is_plain_mapping(container) and type(container) not in SETS:
        return None
    keys = list(container)
    return keys if len(keys) <= MOST_KEYS and all(type(one) in (*NUMBERS, *OTHERS) for one in keys) else None


def equal_numbers(keys: Iterable[Any], key: Any) -> tuple[SymbolicNumber, list[Any]] | None:
    """The number in a key, and the numbers that it would have to be to equal one of the keys; None for other texts."""
    if isinstance(key, SymbolicNumber):
        return key, [one for one in keys if type(one) in NUMBERS]
    parts = [part for part in key.parts if not isinstance(part, str)]
    if key.text is not None or len(parts) != 1 or (number := number_of_text(parts[0])) is None:
        return None
    before, _, behind = (re.escape(one) for one in "\0".join(texts_around(key)).partition("\0"))
    pattern = re.compile(f"{before}({INTEGER.pattern}){behind}", re.DOTALL)
    matches = (pattern.fullmatch(one) for one in keys if type(one) is str)
    return number, [int(match[1]) for match in matches if match is not None]


def number_of_text(part: TextPart) -> SymbolicNumber | None:
    """The integer that a part of a text is the plain text of; None for any other part."""
    value, *form = part.arguments
    is_plain = part.function in CONVERSIONS and not any(form)
    return value if is_plain and isinstance(value, SymbolicNumber) and value.kind is int else None


def texts_around(text: SymbolicText) -> Iterator[str]:
    """The plain texts before and behind the one part of a text that is not plain."""
    place = next(place for place, part in enumerate(text.parts) if not isinstance(part, str))
    for parts in (text.parts[:place], text.parts[place + 1 :]):
        yield "".join(part for part in parts if isinstance(part, str))


def value_in_call(text: SymbolicText, number: SymbolicNumber) -> str:
    """The text in the call that is traced, of a number from outside."""
    before, behind = texts_around(text)
    return f"{before}{number.source.value}{behind}"


@lookaside(bisect.bisect_left, bisect.bisect_right)
def search(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """The place of a symbolic number among sorted ones is found by comparisons, whose outcomes are guarded."""
    if len(args) != 2 or kwargs or type(args[0]) not in (list, tuple):
        return None
    if not any(isinstance(one, SymbolicNumber) for one in (args[1], *args[0])):
        return None
    acquisition.outside.expand(args[0])
    is_before = operator.lt if function is bisect.bisect_left else operator.le

    def run(items: Any, value: Any) -> int:
        low, high = 0, len(items)
        while low < high:
            middle = (low + high) // 2
            if is_before(items[middle], value):
                low = middle + 1
            else:
                high = middle
        return low

    return run
