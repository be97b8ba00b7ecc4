"""The findings of a benchmark: plain data, alone in a file for later comparison or as part of a report."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import quantiles
from typing import Annotated, Self

from pydantic import Field, computed_field, model_validator

from thunder_core.workflow.benchmark.interval import BenchmarkFacts, Interval
from thunder_core.workflow.benchmark.verdict import Verdict, in_words, verdict_of

FIRST_TOKEN, NEXT_TOKEN = "first token", "next token"
PARTS = (FIRST_TOKEN, NEXT_TOKEN)  # of a call of `generate`

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
    """One of the callables that were measured; all times are seconds a call."""

    name: str
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(min_length=1)
    """The time of each round, in order."""
    median: float
    first_quartile: float
    third_quartile: float
    minimum: float
    maximum: float
    speedup: Interval
    """How many times as fast as the first candidate."""
    peak_bytes: int | None
    """Memory that one call takes beyond what was allocated before; None where it was not counted."""

    @property
    def spread(self) -> float:
        """The interquartile range, in seconds."""
        return self.third_quartile - self.first_quartile

    @computed_field  # type: ignore[prop-decorator]
    @property
    def p90(self) -> float:
        """The time that nine calls of ten are done in."""
        return self.percentile(90)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def p99(self) -> float:
        """The time that 99 calls of a hundred are done in; of fewer rounds than that, nearly the slowest."""
        return self.percentile(99)

    def percentile(self, percent: int) -> float:
        """A percentile of the times, between two of them where it falls there (Hyndman and Fan, 1996, type 7)."""
        if len(self.seconds) < 2:
            return self.median
        return quantiles(self.seconds, n=100, method="inclusive")[percent - 1]


Candidate = BenchmarkCandidate  # the name that it had before, for whoever imports that


class BenchmarkReport(BenchmarkFacts):
    """Candidates that were measured in turn in one process; the first is what the others are compared with."""

    machine: str
    device: str
    configuration: dict[str, str]
    """What was measured: model, recipe, batch, seq, dtype, ... Only equal configurations are comparable."""
    runs: int
    warmup: int
    load: str = ""
    """The load of other processes in words, where the threads had to wait for processors; empty where they had not."""
    candidates: tuple[BenchmarkCandidate, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def require_equal_rounds(self) -> Self:
        """Raise ValueError for candidates of other numbers of rounds: they are compared round by round."""
        rounds = {one.name: len(one.seconds) for one in self.candidates}
        if len(set(rounds.values())) > 1:
            raise ValueError(f"the candidates have different numbers of rounds: {rounds}")
        return self

    @property
    def parts(self) -> tuple[BenchmarkReport, ...]:
        """The parts of the measured call that are told apart, each with times of its own; none for most calls."""
        return ()

    @property
    def call(self) -> str:
        """The name of one measured call: `call`, `training step`, `generation` or what is part of it."""
        return self.configuration.get("call", "call")

    @property
    def first(self) -> BenchmarkCandidate:
        """The candidate that the others are compared with."""
        return self.candidates[0]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each candidate but the first; `verdict` defines it."""
        return {one.name: self.verdict(one) for one in self.candidates[1:]}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def throughput(self) -> dict[str, float]:
        """Samples a second of each candidate: those of one call, over the median of its time."""
        return {one.name: self.samples / one.median if one.median else 0.0 for one in self.candidates}

    @property
    def samples(self) -> int:
        """The number of samples that one call is given."""
        batch = self.configuration.get("batch", "1")
        return int(batch) if batch.isdecimal() else 1

    def verdict(self, candidate: BenchmarkCandidate) -> Verdict:
        """The verdict that the measurement allows on a candidate."""
        return verdict_of(candidate.speedup, len(candidate.seconds), self.first, candidate)

    def told(self, candidate: BenchmarkCandidate) -> str:
        """The verdict on a candidate in words, and the load of other processes for an unstable result."""
        verdict = self.verdict(candidate)
        words = in_words(verdict, self.first.name, len(candidate.seconds))
        return f"{words} ({self.load})" if self.load and verdict == "unstable" else words


def candidate_in_words(name: str, configuration: Mapping[str, str]) -> str:
    """The name of a candidate and, where what was timed is part of a call, of that part: `thunder, first token`."""
    call = configuration.get("call", "")
    return f"{name}, {call}" if call in PARTS else name


def size_in_words(configuration: Mapping[str, str]) -> str:
    """The size of the inputs: `1 x 128` for tokens, `1 x 224 x 224 pixels` for images."""
    return f"{configuration.get('batch', '')} x {configuration.get('size', configuration.get('seq', ''))}"
