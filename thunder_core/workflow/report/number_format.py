"""Numbers formatted for people: bytes, counts, errors and ratios."""

from __future__ import annotations

import math

from thunder_core.foundation.time_format import significant

BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
TIMES = "\N{MULTIPLICATION SIGN}"
COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def size(value: float) -> str:
    """Return a number of bytes with a binary unit: `1.21 MiB`."""
    return next((f"{significant(value / unit)} {name}" for unit, name in BYTE_UNITS if value >= unit), f"{value:.0f} B")


def count(value: float) -> str:
    """Return a large number with a suffix: `8.03B`; numbers below a thousand are exact."""
    return next((f"{significant(value / unit)}{name}" for unit, name in COUNT_UNITS if value >= unit), f"{value:g}")


def error(value: float) -> str:
    """Return an error with two digits: `2.5e-07`; or `0`, `∞` or `NaN`."""
    if math.isnan(value):
        return "NaN"
    return "0" if value == 0 else f"{value:.1e}" if math.isfinite(value) else "∞"


def times(value: float) -> str:
    """Return a ratio with a multiplication sign."""
    return "NaN" if math.isnan(value) else f"{significant(value)}{TIMES}" if math.isfinite(value) else "∞"


def percent(share: float) -> str:
    """Return a share as a percentage, without zero decimals: 0.5 as `50%`. Only exactly 1 gives `100%`."""
    text = f"{share:.2%}"
    return "99.99%" if text == "100.00%" and share < 1 else text.replace(".00%", "%")


def shorten(text: str, width: int) -> str:
    """Return a text with its middle omitted if it is longer than `width` characters."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
