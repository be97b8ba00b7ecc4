"""The rows of a report on `generate`: each contender at each size, with the verdicts on its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, size_in_words
from thunder_core.workflow.benchmark.verdict import Verdict
from thunder_core.workflow.report import number_format


@dataclass(frozen=True)
class TimeFacts:
    """A time of one contender in seconds, with its speed-up and verdict; the first contender has only the time."""

    seconds: float
    speedup: str
    verdict: Verdict | None


@dataclass(frozen=True)
class GenerationRow:
    """One contender at one size: its times, its tokens per second, its memory, and the difference of its tokens.

    `leads` is True for the first contender of each size, with which the other contenders are compared.
    """

    size: str
    leads: bool
    name: str
    whole: TimeFacts
    first: TimeFacts
    next: TimeFacts | None
    rate: float | None
    peak: int | None
    difference: str


def generation_rows(reports: Sequence[GenerationBenchmark]) -> list[GenerationRow]:
    """Return the rows of all contenders, size by size."""
    return [generation_row(report, candidate) for report in reports for candidate in report.candidates]


def generation_row(report: GenerationBenchmark, candidate: BenchmarkCandidate) -> GenerationRow:
    """Return the row of one contender."""
    return GenerationRow(
        size=size_in_words(report.configuration),
        leads=candidate is report.first,
        name=candidate.name,
        whole=time_facts(report, candidate.name),
        first=time_facts(report.first_token, candidate.name),
        next=None if report.next_token is None else time_facts(report.next_token, candidate.name),
        rate=report.tokens_per_second(candidate),
        peak=candidate.peak_bytes,
        difference=report.difference(candidate),
    )


def time_facts(report: BenchmarkReport, name: str) -> TimeFacts:
    """Return the time of a contender in a report or in a part of a report."""
    candidate = next(candidate for candidate in report.candidates if candidate.name == name)
    if candidate is report.first:
        return TimeFacts(candidate.median, "", None)
    return TimeFacts(candidate.median, speedup_text(candidate.speedup), report.verdict(candidate))


def speedup_text(speedup: Interval) -> str:
    """Return a speed-up with its 95% interval, as pages write it."""
    value, low, high = map(number_format.times, (speedup.value, speedup.low, speedup.high))
    return f"{value} [{low}, {high}]"
