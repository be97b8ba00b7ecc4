"""Ranges of sizes from options such as `--dynamic seq=1:8192`, checked before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder_core.foundation.errors import BadOption, BadSymbolicArgument
from thunder_core.foundation.options.whole_number import is_whole_number
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.workflow.models.request.input_size import InputSize

SizeRange = tuple[int, int]
MIN_SIZES = {"cache": 0}  # the minimum sizes of dimensions, if not 1
FORMAT_FIX = "write the minimum and the maximum, as in {} {}=1:64"


def ranges_in(option: str, texts: Mapping[str, Any]) -> dict[str, SizeRange]:
    """Return the ranges by name from texts such as `1:8192`; raise `BadOption` for a text that is not `MIN:MAX`."""
    return {name: _range(option, name, text) for name, text in texts.items()}


def _range(option: str, name: str, text: object) -> SizeRange:
    lower, colon, upper = str(text).partition(":")
    numbers = [word.strip() for word in (lower, upper)]
    if not colon or not all(map(is_whole_number, numbers)):
        raise BadOption(f"{option} {name}={text!s:.80} is not a range", fix=FORMAT_FIX.format(option, name))
    return int(numbers[0]), int(numbers[1])


def limited_size(ranges: Mapping[str, SizeRange], name: str, size: int, *, is_requested: bool) -> int:
    """Return the requested size, or the default size limited to the range of this name.

    Raises `BadOption` for a requested size outside the range.
    """
    lower, upper = ranges.get(name, (size, size))
    if is_requested and not lower <= size <= upper:
        raise BadOption(
            f"--{name} is {size}, outside the range {name}={lower}:{upper}",
            fix=f"set --{name} to a number from {lower} to {upper}, or leave out --{name}",
        )
    return min(max(size, lower), upper)


def require_ranges(option: str, ranges: Mapping[str, object]) -> None:
    """Raise an error for ranges that no program can serve.

    Raises `BadSymbolicArgument` for a name that is not a size of an input. Raises `BadOption` for a value that is not a
    pair of integers, for an empty range, for a range with one size, and for a range that begins below the minimum,
    which is 0 for a cache and 1 for other sizes.
    """
    for name, size_range in ranges.items():
        if name not in InputSize._fields:
            raise BadSymbolicArgument(
                f"{option} names {name!r:.80}, which is not a size of an input",
                fix=f"{did_you_mean(name, InputSize._fields)}name one of: {', '.join(InputSize._fields)}",
            )
        if not (
            isinstance(size_range, tuple) and len(size_range) == 2 and all(type(bound) is int for bound in size_range)
        ):
            raise BadOption(
                f"{option} {name} is {size_range!r:.80}, which is not a range", fix="write (minimum, maximum)"
            )
        lower, upper = size_range
        text = f"{option} {name}={lower}:{upper}"
        least = MIN_SIZES.get(name, 1)
        if lower < least:
            why = ", and no range contains the size 0" if least else ""
            raise BadOption(
                f"{text} begins below {least}{why}", fix=f"write {option} {name}={least}:{max(upper, least + 1)}"
            )
        if lower == upper:
            raise BadOption(f"{text} has only one size", fix=f"leave out {option} {name}, and use --{name} {lower}")
        if lower > upper:
            raise BadOption(f"{text} is an empty range", fix=f"write {option} {name}={max(upper, least)}:{lower}")
