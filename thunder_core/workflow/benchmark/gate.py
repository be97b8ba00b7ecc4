"""The gate of `--require-speedup`: a speed-up that has to be shown, not hoped for."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption, SpeedupMissed
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport
from thunder_core.workflow.benchmark.suite import BenchmarkSuite
from thunder_core.workflow.benchmark.verdict import MIN_ROUNDS

LARGEST = 1e6


def check_gate(least: float, runs: int) -> None:
    """Raise `BadOption` for what is no factor, and for fewer rounds than a speed-up can be shown by."""
    if not 0 < least <= LARGEST:
        raise BadOption(f"--require-speedup is {least:g}", fix="use a factor above 0, such as 1.1")
    if runs < MIN_ROUNDS:
        raise BadOption(
            f"--runs is {runs}, but --require-speedup needs at least {MIN_ROUNDS} rounds",
            fix="use --runs 30, or leave out --require-speedup",
        )


def require_speedup(measured: BenchmarkReport | BenchmarkSuite, least: float, candidate: str) -> None:
    """Raise `SpeedupMissed`, with what was measured as its `report`, unless the candidate has that speed-up throughout.

    It has where the whole 95% interval is at or above `least` and the measurement is not unstable: the first candidate
    is what it is held against.
    """
    reports = measured.reports if isinstance(measured, BenchmarkSuite) else (measured,)
    missed = [
        f"{size_prefix(report)}{miss}"
        for report in reports
        for one in report.candidates[1:]
        if one.name == candidate and (miss := shortfall(report, one, least))
    ]
    if not missed:
        return
    error = SpeedupMissed(
        f"a speed-up of {least:g} is required, but not shown by {len(missed)} of {len(reports)} measurements: "
        f"{'; '.join(missed)}",
        fix="try another recipe or a lower requirement; more --runs on a quiet machine narrow the interval",
    )
    error.report = measured
    raise error


def shortfall(report: BenchmarkReport, candidate: BenchmarkCandidate, least: float) -> str:
    """The shortfall of a candidate that misses a speed-up, in words; empty where it does not."""
    speedup, verdict = candidate.speedup, report.verdict(candidate)
    if speedup.low >= least and verdict != "unstable" and len(candidate.seconds) >= MIN_ROUNDS:
        return ""
    told = f"{candidate.name} is {speedup.value:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] as fast"
    return f"{told} as {report.first.name} ({report.told(candidate)})"


def size_prefix(report: BenchmarkReport) -> str:
    """The size of a measurement, before what is said of it."""
    known = report.configuration
    read = {"": known["size"]} if "size" in known else {"seq": known.get("seq")}
    sizes = [f"{key} {size}".strip() for key, size in {"batch": known.get("batch"), **read}.items() if size]
    return f"{', '.join(sizes)}: " if sizes else ""
