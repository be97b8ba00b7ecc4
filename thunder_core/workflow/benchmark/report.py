"""The results of a benchmark: plain data, in a file for later comparison or as part of a report."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import quantiles
from typing import Annotated, Self

from pydantic import Field, computed_field, model_validator

from thunder_core.workflow.benchmark.interval import BenchmarkFacts, Interval
from thunder_core.workflow.benchmark.verdict import Verdict, in_words, verdict_of

FIRST_TOKEN, NEXT_TOKEN = "first token", "next token"
PARTS = (FIRST_TOKEN, NEXT_TOKEN)  # parts of a call of `generate`

__all__ = [
    "FIRST_TOKEN",
    "NEXT_TOKEN",
    "BenchmarkCandidate",
    "BenchmarkFacts",
    "BenchmarkReport",
    "Candidate",
    "Interval",
    "candidate_in_words",
    "size_in_words",
]


class BenchmarkCandidate(BenchmarkFacts):
    """A measured callable; all times are in seconds for one call."""

    name: str
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(min_length=1)
    """The time of each round, in order."""
    median: float
    first_quartile: float
    third_quartile: float
    minimum: float
    maximum: float
    speedup: Interval
    """The speed relative to the first candidate; 2 is twice as fast."""
    peak_bytes: int | None
    """The peak memory of one call above the memory allocated before; None if it was not measured."""

    @property
    def spread(self) -> float:
        """The interquartile range, in seconds."""
        return self.third_quartile - self.first_quartile

    @computed_field  # type: ignore[prop-decorator]
    @property
    def p90(self) -> float:
        """The 90th percentile of the times."""
        return self.percentile(90)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def p99(self) -> float:
        """The 99th percentile of the times. With fewer than 100 rounds, it is close to the slowest time."""
        return self.percentile(99)

    def percentile(self, percent: int) -> float:
        """Return a percentile of the times, interpolated between two times (Hyndman and Fan, 1996, type 7)."""
        if len(self.seconds) < 2:
            return self.median
        return quantiles(self.seconds, n=100, method="inclusive")[percent - 1]


Candidate = BenchmarkCandidate  # the earlier name, for code that imports it


class BenchmarkReport(BenchmarkFacts):
    """Candidates that were measured in turn in one process; the others are compared with the first candidate."""

    machine: str
    device: str
    configuration: dict[str, str]
    """The model, recipe, batch, seq, dtype and so on. Only equal configurations are comparable."""
    runs: int
    warmup: int
    load: str = ""
    """The load of other processes in words if the threads had to wait for processors; otherwise empty."""
    candidates: tuple[BenchmarkCandidate, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def require_equal_rounds(self) -> Self:
        """Raise ValueError if candidates have different numbers of rounds, because they are compared round by round."""
        rounds = {candidate.name: len(candidate.seconds) for candidate in self.candidates}
        if len(set(rounds.values())) > 1:
            raise ValueError(f"the candidates have different numbers of rounds: {rounds}")
        return self

    @property
    def parts(self) -> tuple[BenchmarkReport, ...]:
        """The separately measured parts of the call; empty for most calls."""
        return ()

    @property
    def call(self) -> str:
        """The name of one measured call: `call`, `training step`, `generation` or a part of a call."""
        return self.configuration.get("call", "call")

    @property
    def first(self) -> BenchmarkCandidate:
        """The candidate that the others are compared with."""
        return self.candidates[0]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each candidate except the first; `verdict` defines it."""
        return {candidate.name: self.verdict(candidate) for candidate in self.candidates[1:]}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def throughput(self) -> dict[str, float]:
        """The samples per second of each candidate: the samples of one call divided by its median time."""
        return {
            candidate.name: self.samples / candidate.median if candidate.median else 0.0
            for candidate in self.candidates
        }

    @property
    def samples(self) -> int:
        """The number of samples of one call."""
        batch = self.configuration.get("batch", "1")
        return int(batch) if batch.isdecimal() else 1

    def verdict(self, candidate: BenchmarkCandidate) -> Verdict:
        """Return the verdict on a candidate's speed."""
        return verdict_of(candidate.speedup, len(candidate.seconds), self.first, candidate)

    def verdict_in_words(self, candidate: BenchmarkCandidate) -> str:
        """Return the verdict on a candidate in words, with the load of other processes for an unstable result."""
        verdict = self.verdict(candidate)
        words = in_words(verdict, self.first.name, len(candidate.seconds))
        return f"{words} ({self.load})" if self.load and verdict == "unstable" else words


def candidate_in_words(name: str, configuration: Mapping[str, str]) -> str:
    """Return the name of a candidate, with the part of the call if only a part was timed: `thunder, first token`."""
    call = configuration.get("call", "")
    return f"{name}, {call}" if call in PARTS else name


def size_in_words(configuration: Mapping[str, str]) -> str:
    """Return the size of the inputs: `1 x 128` for tokens, `1 x 224 x 224 pixels` for images."""
    return f"{configuration.get('batch', '')} x {configuration.get('size', configuration.get('seq', ''))}"
