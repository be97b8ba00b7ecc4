"""What a benchmark found: plain data, alone in a file for later comparison or as part of a report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION: Literal[1] = 1


class Facts(BaseModel):
    """Frozen data that refuses unknown keys; infinities and NaN survive JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Interval(Facts):
    """An estimate and its 95% confidence interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the two estimates may be of the same value."""
        return self.low <= other.high and other.low <= self.high


class Candidate(Facts):
    """One of the callables that were measured; all times are seconds a call."""

    name: str
    seconds: tuple[float, ...]
    """The time of each round, in order."""
    median: float
    first_quartile: float
    third_quartile: float
    minimum: float
    maximum: float
    speedup: Interval
    """How many times as fast as the first candidate."""
    peak_bytes: int | None
    """Device memory that one call takes beyond what was allocated before; None on a CPU, which does not count it."""

    @property
    def spread(self) -> float:
        """The interquartile range, in seconds."""
        return self.third_quartile - self.first_quartile


class BenchmarkReport(Facts):
    """Candidates that were measured in turn in one process; the first is what the others are compared with."""

    machine: str
    device: str
    configuration: dict[str, str]
    """What was measured: model, recipe, batch, seq, dtype, ... Only equal configurations are comparable."""
    runs: int
    warmup: int
    candidates: tuple[Candidate, ...]

    @property
    def call(self) -> str:
        """What one measured call is: `call`, or `training step`."""
        return self.configuration.get("call", "call")

    @property
    def first(self) -> Candidate:
        """The candidate that the others are compared with."""
        return self.candidates[0]


class BenchmarkSuite(Facts):
    """The file that `thunder bench --json` writes and `--baseline` reads: one report for each configuration."""

    schema_version: Literal[1] = SCHEMA_VERSION
    thunder: str
    reports: tuple[BenchmarkReport, ...]
