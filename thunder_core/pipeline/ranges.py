"""Ranges of sizes: what `--dynamic seq=1:8192` says, checked before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder_core.errors import BadOption

SizeRange = tuple[int, int]
LEAST = {"cache": 0}  # the least size of a dimension that is not one
WRITE = "write the least and the greatest size, as in {} {}=1:64"


def ranges_in(option: str, given: Mapping[str, Any]) -> dict[str, SizeRange]:
    """The ranges by their names, from texts such as `1:8192`; raises `BadOption`."""
    return {name: _range(option, name, text) for name, text in given.items()}


def _range(option: str, name: str, text: object) -> SizeRange:
    lower, colon, upper = str(text).partition(":")
    numbers = [word.strip() for word in (lower, upper)]
    if not colon or not all(word.isdecimal() and word.isascii() and len(word) < 20 for word in numbers):
        raise BadOption(f"{option} {name}={text!s:.80} is no range", fix=WRITE.format(option, name))
    return int(numbers[0]), int(numbers[1])


def require_ranges(option: str, ranges: Mapping[str, object]) -> None:
    """Raise `BadOption` for a range that is none, that has no two sizes, or that begins below one.

    A cache alone may be empty.
    """
    for name, given in ranges.items():
        if not (isinstance(given, tuple) and len(given) == 2 and all(type(bound) is int for bound in given)):
            raise BadOption(f"{option} {name} is {given!r:.80}, which is no range", fix="give (least, greatest)")
        lower, upper = given
        told = f"{option} {name}={lower}:{upper}"
        if lower < LEAST.get(name, 1):
            raise BadOption(
                f"{told} begins below 1: a size of 0 is never symbolic", fix=f"write {option} {name}=1:{max(upper, 2)}"
            )
        if lower == upper:
            raise BadOption(f"{told} has one size alone", fix=f"leave it out, and give --{name} {lower}")
        if lower > upper:
            raise BadOption(f"{told} has no sizes", fix=f"write {option} {name}={upper}:{lower}")
