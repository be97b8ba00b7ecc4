"""Numbers formatted for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from thunder_core.workflow.benchmark import BenchmarkReport, Interval

SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
AGES = ((172_800, 86_400, "days"), (3_600, 3_600, "h"), (60, 60, "min"))


def format_magnitude(value: float) -> str:
    """Return an error or another magnitude with two significant digits: `1.2e-07`, or `0`."""
    if not math.isfinite(value):
        return str(value)
    return "0" if value == 0 else f"{value:.2g}"


def format_speedup(interval: Interval) -> str:
    """Return a speed-up with its confidence interval."""
    return f"{interval.value:.2f}x  [{interval.low:.2f}, {interval.high:.2f}]"


def format_rate(value: float) -> str:
    """Return a rate per second: `1,532`, or three significant digits below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_bytes(value: int) -> str:
    """Return a number of bytes in a suitable unit: `65.4 KiB`."""
    unit, name = next((row for row in SIZES if value >= row[0]), SIZES[-1])
    return f"{value / unit:.3g} {name}" if value < 100 * unit else f"{value / unit:.0f} {name}"


def format_age(age: timedelta) -> str:
    """Return the time since an event in a suitable unit: `3 h ago`."""
    elapsed = age.total_seconds()
    return next((f"{elapsed // unit:.0f} {name} ago" for least, unit, name in AGES if elapsed >= least), "just now")


def count_noun(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 entry`, `2 entries`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def rounds_of(benchmark: BenchmarkReport) -> str:
    """Return the numbers of timed runs and warm-up runs, and the machine, in words."""
    noun = "run" if benchmark.call == "call" else benchmark.call
    timed, warmup = count_noun(benchmark.runs, f"interleaved {noun}"), count_noun(benchmark.warmup, f"warm-up {noun}")
    return f"{timed} after {warmup}, {benchmark.machine}"


def format_duration(value: float) -> str:
    """Return a duration in a suitable unit: `45 s`, `9m 40s` or `1h 5m`."""
    rounded = round(value)
    if rounded < 60:
        return f"{rounded} s"
    hours, rest = divmod(rounded, 3600)
    return f"{hours}h {rest // 60}m" if hours else f"{rest // 60}m {rest % 60}s"
