"""The check of `--require-speedup`: the measurement must show the speed-up with 95% confidence."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption, SpeedupMissed
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport
from thunder_core.workflow.benchmark.suite import BenchmarkSuite
from thunder_core.workflow.benchmark.verdict import MIN_ROUNDS

LARGEST = 1e6  # the largest factor that can be required


def check_speedup_factor(least: float, runs: int) -> None:
    """Raise `BadOption` for an invalid factor, and for too few rounds to show a speed-up."""
    if not 0 < least <= LARGEST:
        raise BadOption(
            f"--require-speedup is {least:g}", fix=f"use a factor above 0 and at most {LARGEST:g}, such as 1.1"
        )
    if runs < MIN_ROUNDS:
        raise BadOption(
            f"--runs is {runs}, but --require-speedup needs at least {MIN_ROUNDS} rounds",
            fix="use --runs 30, or leave out --require-speedup",
        )


def require_speedup(measured: BenchmarkReport | BenchmarkSuite, least: float, candidate: str) -> None:
    """Raise `SpeedupMissed`, with the measurement as its `report`, unless all reports show the candidate's speed-up.

    The speed-up is relative to the first candidate. It is shown if the lower end of its 95% interval is at least
    `least` and the measurement is not unstable.
    """
    reports = measured.reports if isinstance(measured, BenchmarkSuite) else (measured,)
    missed = [
        f"{size_prefix(report)}{miss}"
        for report in reports
        for measured_candidate in report.candidates[1:]
        if measured_candidate.name == candidate and (miss := shortfall(report, measured_candidate, least))
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
    """Return in words how a candidate misses the required speed-up; empty if it reaches the speed-up."""
    speedup, verdict = candidate.speedup, report.verdict(candidate)
    if speedup.low >= least and verdict != "unstable" and len(candidate.seconds) >= MIN_ROUNDS:
        return ""
    ratio = f"{candidate.name} is {speedup.value:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] as fast"
    return f"{ratio} as {report.first.name} ({report.verdict_in_words(candidate)})"


def size_prefix(report: BenchmarkReport) -> str:
    """Return the size of the measured inputs with a colon, as the beginning of a message; empty without a size."""
    configuration = report.configuration
    inner = {"": configuration["size"]} if "size" in configuration else {"seq": configuration.get("seq")}
    sizes = [f"{key} {size}".strip() for key, size in {"batch": configuration.get("batch"), **inner}.items() if size]
    return f"{', '.join(sizes)}: " if sizes else ""
