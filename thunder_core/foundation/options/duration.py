"""Durations as users write them: a number and its unit."""

from __future__ import annotations

import re

from thunder_core.foundation.errors import BadOption

UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # units in seconds
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_duration(option: str, text: object) -> float:
    """Return the seconds of a duration such as `10s`, `1m` or `0.5`; raise `BadOption` for any other text.

    >>> parse_duration("--tune", "1m")
    60.0
    """
    match = DURATION.fullmatch(str(text).strip())
    if match is None or match[2] not in UNITS:
        raise BadOption(f"{option} is {text!r:.40}", fix=f"set {option} to a time such as 0s, 10s or 1m")
    return float(match[1]) * UNITS[match[2]]
