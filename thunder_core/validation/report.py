"""What a validation found: plain data, which joins the report of a run as it is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from thunder_core.recipe import Tolerance


class Facts(BaseModel):
    """Frozen data that refuses unknown keys; infinities and NaN survive JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Errors(Facts):
    """Absolute errors of one output against the reference."""

    maximum: float
    mean: float
    median: float
    p99: float


class LanguageReport(Facts):
    """How well the logits of a language model agree with the reference."""

    kl: float
    """KL divergence of the optimized model from the reference, nats, mean over positions."""
    eager_kl: float
    """The same for eager."""
    top1: float
    """Share of positions whose most probable token is the reference's, or is undecided."""
    undecided: float
    """Share of positions where the reference's two best tokens are closer than eager's own rounding."""


class OutputReport(Facts):
    """One output tensor; each figure is that of the input for which it is worst."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    optimized: Errors
    eager: Errors
    scale: float
    """The largest magnitude in the reference; for a gradient that is zero but for rounding, that of all gradients."""
    cosine: float
    language: LanguageReport | None
    smallest_tolerance: float
    """The smallest `times_eager` that would have passed; infinite where none would."""
    passed: bool
    failures: tuple[str, ...]


class ValidationReport(Facts):
    """Every output of the optimized model beside eager's, both against a reference in higher precision."""

    passed: bool
    inputs: int
    reference_dtype: str
    tolerance: Tolerance
    outputs: tuple[OutputReport, ...]
    notes: tuple[str, ...]

    def allowed(self, output: OutputReport) -> float:
        """The largest error that the tolerance allows an output."""
        return self.tolerance.times_eager * output.eager.maximum + self.tolerance.floor * output.scale

    @property
    def ranked(self) -> list[OutputReport]:
        """The outputs, those that failed first, and then by how much they use of what is allowed."""
        return sorted(self.outputs, key=lambda output: (output.passed, -self._used(output)))

    def _used(self, output: OutputReport) -> float:
        return output.optimized.maximum / (self.allowed(output) or 1.0)

    @property
    def worst(self) -> OutputReport:
        """The output that is furthest out: a failed one where there is one."""
        return max(self.outputs, key=lambda output: (not output.passed, output.smallest_tolerance))
