"""Times as text, for the terminal, for reports and for notes of executors."""

from __future__ import annotations

import math

# Units of time with their sizes in seconds. The names are ASCII, so that every terminal can show them.
TIME_UNITS = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def format_time(seconds: float) -> str:
    """Return a time in the largest unit that is not longer than the time, with three significant digits: `22.1 ms`."""
    size, unit = time_unit(seconds)
    return f"{significant(seconds / size)} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit that is not longer than a time, as the unit's size in seconds and its name."""
    return next((unit for unit in TIME_UNITS if seconds >= unit[0]), TIME_UNITS[-1])


def significant(value: float) -> str:
    """Return a number with three significant digits, without an exponent up to a million."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
