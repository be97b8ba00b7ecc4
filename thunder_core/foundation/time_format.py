"""Times formatted for people: one function for the terminal, reports and notes of executors."""

from __future__ import annotations

import math

TIME_UNITS = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))  # sizes in seconds; ASCII, for all terminals


def format_time(seconds: float) -> str:
    """Return a time in its best unit, with three significant digits: `22.1 ms`."""
    size, unit = time_unit(seconds)
    return f"{significant(seconds / size)} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the best unit for a time, as its size in seconds and its name."""
    return next((unit for unit in TIME_UNITS if seconds >= unit[0]), TIME_UNITS[-1])


def significant(value: float) -> str:
    """Return a number with three significant digits, without an exponent up to a million."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
