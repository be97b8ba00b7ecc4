"""Measurements as comma-separated values: a line for each candidate at each size, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from thunder_core.foundation.printable import printable
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport
from thunder_core.workflow.benchmark.suite import BenchmarkSuite

NAMES = ("model", "recipe", "dtype", "batch", "seq", "size", "call", "input")  # columns of the configuration
FORMULA_PREFIXES = ("=", "+", "-", "@")  # spreadsheets evaluate cells that begin with these characters

Row = dict[str, object]


def render_csv(suite: BenchmarkSuite) -> str:
    """Return the measurements as a CSV table with a header, in seconds and bytes (RFC 4180, but other line ends)."""
    rows = [row_of(report, candidate) for report in suite.measured for candidate in report.candidates]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def row_of(report: BenchmarkReport, candidate: BenchmarkCandidate) -> Row:
    """Return the row of one candidate at one size."""
    speedup = candidate.speedup
    leading = candidate is report.first
    return {
        **dict(_names(report)),
        "device": inert(report.device),
        "machine": inert(report.machine),
        "candidate": inert(candidate.name),
        "runs": report.runs,
        "warmup": report.warmup,
        "median_s": candidate.median,
        "first_quartile_s": candidate.first_quartile,
        "third_quartile_s": candidate.third_quartile,
        "p90_s": candidate.p90,
        "p99_s": candidate.p99,
        "minimum_s": candidate.minimum,
        "maximum_s": candidate.maximum,
        "samples_per_s": report.throughput[candidate.name],
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "against": inert(report.first.name),
        "verdict": "" if leading else report.verdict(candidate),
        "peak_bytes": "" if candidate.peak_bytes is None else candidate.peak_bytes,
    }


def _names(report: BenchmarkReport) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        yield name, inert(report.configuration.get(name, "call" if name == "call" else ""))


def inert(text: str) -> str:
    """Return a text as one line that no spreadsheet evaluates as a formula."""
    line = " ".join(printable(text).split())
    return f"'{line}" if line.startswith(FORMULA_PREFIXES) else line
