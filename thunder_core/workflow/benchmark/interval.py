"""The base class of measurements, and an estimate with its confidence interval."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class BenchmarkFacts(BaseModel):
    """Frozen data that rejects unknown keys; infinities and NaN are stored in JSON as strings.

    Computed fields are written to JSON for readers, and computed again when the data is read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @model_validator(mode="before")
    @classmethod
    def _without_computed(cls, data: object) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name not in cls.model_computed_fields}


class Interval(BenchmarkFacts):
    """An estimate and its 95% confidence interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals overlap, so that the estimates may have the same value."""
        return self.low <= other.high and other.low <= self.high
