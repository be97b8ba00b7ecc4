"""Sizes and ages in the notation of the command line: `1.5GiB`, `30d`."""

from __future__ import annotations

import re
from datetime import timedelta

from thunder_core.foundation.errors import BadOption

AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
PREFIXES = "kmgt"
BYTES = {
    "": 1,
    "b": 1,
    **{prefix: 1 << 10 * power for power, prefix in enumerate(PREFIXES, 1)},
    **{f"{prefix}ib": 1 << 10 * power for power, prefix in enumerate(PREFIXES, 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(PREFIXES, 1)},
}
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
LONGEST = 36_525 * SECONDS["d"]  # a century


def bytes_of(option: str, text: str) -> int:
    """Return the number of bytes for a size such as `500M` or `1.5GiB`; raise `BadOption` for any other text."""
    number, factor = _parse(text, BYTES) or _refuse(option, text, "a size", "500M, 2G, 1.5GiB or a number of bytes")
    return int(number * factor)


def age_of(option: str, text: str) -> timedelta:
    """Return the time for an age such as `30d` or `12h`; raise `BadOption` for any other text."""
    accepted = "45m, 12h, 30d or 2w"
    number, factor = _parse(text, SECONDS) or _refuse(option, text, "an age", accepted)
    if number * factor > LONGEST:
        _refuse(option, text, "an age within a century", accepted)
    return timedelta(seconds=number * factor)


def _parse(text: str, units: dict[str, int]) -> tuple[float, int] | None:
    match = AMOUNT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]), units[match[2].lower()]


def _refuse(option: str, text: str, kind: str, accepted: str) -> tuple[float, int]:
    raise BadOption(f"{option} is {text!r}, which is not {kind}", fix=f"write it as {accepted}")
