"""The findings of a validation: plain data, which joins the report of a run as it is."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation.inside import InsideReport
from thunder_core.workflow.validation.report_facts import ReportFacts

LOSS, GRADIENT = "loss", ".grad"  # the name of an output, and the end of those of gradients
AFTER_CALL = " after the call"  # the end of the names of buffers, attributes and inputs that a call changed


class Errors(ReportFacts):
    """Absolute errors of one output against the reference."""

    maximum: float
    mean: float
    median: float
    p99: float


class LanguageReport(ReportFacts):
    """The agreement of a language model's logits with the reference."""

    kl: float
    """KL divergence of the optimized model from the reference, nats, mean over positions."""
    eager_kl: float
    """The same for eager."""
    top1: float
    """Share of positions whose most probable token is the reference's, or is undecided."""
    undecided: float
    """Share of positions where the reference's two best tokens are closer than eager's own rounding."""


class OutputReport(ReportFacts):
    """One output, gradient or changed state; errors and scale are those of the one input for which it is worst."""

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
    elements: int = 0
    """How many numbers were looked at, over all inputs; 0 in reports of versions that did not count."""
    nan: int = 0
    """How many of them are NaN in eager's result or in the reference."""
    infinite: int = 0
    """How many are infinite in one of the two, and NaN in neither."""
    finite_in_eager: bool = True
    all_zero: bool = False
    """Whether eager's result is zero throughout, on every input."""

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of a parameter."""
        return self.name.endswith(GRADIENT)

    @property
    def is_state(self) -> bool:
        """Whether it is a buffer, an attribute or an input as a call that changes it leaves it."""
        return self.name.endswith(AFTER_CALL)

    @property
    def finite(self) -> bool:
        """Whether eager's result and the reference hold numbers alone."""
        return not (self.nan or self.infinite)

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating or complex numbers, which alone can fail to be numbers."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def remark(self) -> str:
        """The remark beside whether it passed: `NaN: 3 of 128`, `all zeros`; empty for most."""
        counts = (("NaN", self.nan), ("infinite", self.infinite))
        told = [f"{kind}: {_share(number, self.elements)}" for kind, number in counts if number]
        return ", ".join([*told, *(["all zeros"] if self.all_zero else [])])


def _share(number: int, elements: int) -> str:
    return f"all {elements:,}" if number == elements else f"{number:,} of {elements:,}"


class Evaluation(ReportFacts):
    """A model on real samples before and after: eager PyTorch's result by a metric, and the optimized one's."""

    metric: str
    """`accuracy` (share of labels met), `perplexity` (of the labels) or `cosine` (mean, with eager's embeddings)."""
    file: str
    """The file's name, and the first digits of its SHA-256."""
    samples: int
    counted: int
    """The labels, or for the cosine the samples, that were counted."""
    before: float
    after: float


class PointReport(ReportFacts):
    """The inputs of one size, where several sizes were validated: the output that is worst there, and its errors."""

    size: str
    """`4 x 320`: samples, and tokens in each."""
    inputs: int
    output: str
    optimized: float
    """The largest error of that output against the reference."""
    eager: float
    """The same of eager's."""
    passed: bool
    """Whether every output did."""


class PromptReport(ReportFacts):
    """The tokens that follow the prompts of one batch: eager's, and those that the optimized model would choose."""

    size: str
    """`8 x 128, padded`: prompts, and tokens in the longest."""
    tokens: int
    """The tokens that were compared, over all prompts and steps."""
    equal: int
    """How many of them the optimized model chooses as eager does, behind the same tokens."""
    first_difference: int | None = None
    """The first step, from 1 on, at which a token differs; None where none does."""
    divergences: tuple[float, ...]
    """KL divergence of the optimized next-token distribution from eager's at each step, nats, mean over the prompts."""
    passed: bool
    failures: tuple[str, ...] = ()

    @property
    def mean_divergence(self) -> float:
        """The divergence, mean over the steps."""
        return sum(self.divergences) / len(self.divergences)

    @property
    def largest_divergence(self) -> float:
        """The divergence at the step at which it is greatest."""
        return max(self.divergences)


class GenerationReport(ReportFacts):
    """Greedy generation of the optimized model beside eager's, for prompts of several lengths and batches."""

    passed: bool
    new_tokens: int
    dtype: str
    exact: bool
    """Whether every token has to be eager's; else the share of them that the tolerance names."""
    tolerance: Tolerance
    prompts: tuple[PromptReport, ...]
    notes: tuple[str, ...] = ()
    inside: InsideReport | None = None
    """The programs line by line, each on the inputs of one call; None where their traces are not at hand."""

    @property
    def tokens(self) -> int:
        """The tokens that were compared."""
        return sum(one.tokens for one in self.prompts)

    @property
    def equal(self) -> int:
        """The number of them that are eager's."""
        return sum(one.equal for one in self.prompts)

    @property
    def worst(self) -> PromptReport:
        """The prompts that are furthest out: failed ones where there are any."""
        return max(self.prompts, key=lambda one: (not one.passed, one.tokens - one.equal, one.largest_divergence))


class LayerQuality(ReportFacts):
    """A quantized layer beside the float one of its name."""

    name: str
    kind: str
    """The class of the quantized layer: `Int8DynamicLinear`."""
    float_bytes: int
    """The size of the float weight."""
    bytes: int
    """The size of the codes, with their scales."""
    error: float | None
    """The norm of the difference of both results on the same inputs, as a part of that of the float one; None where the
    layer was not called."""


class QuantizationReport(ReportFacts):
    """A quantized model in eager PyTorch beside the float one: what its layers and outputs lose, and what is saved."""

    passed: bool
    inputs: int
    bound: Quality
    output: str
    """The output that is furthest from the float model's."""
    error: float
    """The norm of its difference, as a part of that of the float output."""
    kl: float | None
    """KL divergence of the logits from the float model's, nats, mean over positions; None without logits."""
    top1: float | None
    """Share of positions whose most probable token is the float model's."""
    layers: tuple[LayerQuality, ...]
    float_bytes: int
    """The size of all weights and buffers of the float model; tied ones count once."""
    bytes: int
    """The size of all weights and buffers of the quantized model; tied ones, and codes that are shared, count once."""
    failures: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """The layers that were left out so that the bound holds."""
    calibrated: str = ""
    """What it was calibrated with; empty where it was not."""

    @property
    def ranked(self) -> list[LayerQuality]:
        """The layers, those with the greatest error first."""
        return sorted(self.layers, key=lambda layer: -(layer.error or 0.0))

    @property
    def summary(self) -> str:
        """The number of quantized layers and the error of the outputs, in words."""
        layers = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'} quantized"
        logits = "" if self.kl is None else f", KL divergence {self.kl:.2g} nats, top-1 agreement {self.top1:.1%}"
        return f"{layers}; relative error of {self.output} {self.error:.2g}{logits}"


class ValidationReport(ReportFacts):
    """Every output of the optimized model beside eager's, both against a reference in higher precision."""

    passed: bool
    inputs: int
    reference_dtype: str
    by_layer: bool = False
    """Whether the reference's weights were converted one layer at a time, each while it was read."""
    tolerance: Tolerance
    outputs: tuple[OutputReport, ...]
    notes: tuple[str, ...]
    untraced: bool = False
    """Whether none of the inputs had been traced; False where that is not known."""
    points: tuple[PointReport, ...] = ()
    """Each size by itself, where there were several."""
    inside: InsideReport | None = None
    """The program line by line on one input; None where its traces are not at hand."""

    @property
    def inputs_in_words(self) -> str:
        """The inputs: `3 inputs that were not traced`."""
        counted = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        return f"{counted} that {'was' if self.inputs == 1 else 'were'} not traced" if self.untraced else counted

    @property
    def reference_in_words(self) -> str:
        """The dtype of the reference, and how it was held: `float64, one layer at a time`."""
        return f"{self.reference_dtype}, one layer at a time" if self.by_layer else self.reference_dtype

    def allowed(self, output: OutputReport) -> float:
        """The largest error that the tolerance allows an output."""
        return self.tolerance.times_eager * output.eager.maximum + self.tolerance.floor * output.scale

    @property
    def ranked(self) -> list[OutputReport]:
        """The outputs: those that failed, those with a remark, then by how much they use of what is allowed."""
        return sorted(self.outputs, key=lambda output: (output.passed, not output.remark, -self._used(output)))

    @property
    def vacuous(self) -> bool:
        """Whether every floating output is zero in eager, so that a program that computes nothing would pass."""
        floating = [output for output in self.outputs if output.is_floating and output.elements and not output.is_state]
        return bool(floating) and all(output.all_zero for output in floating)

    def _used(self, output: OutputReport) -> float:
        return output.optimized.maximum / (self.allowed(output) or 1.0)

    @property
    def worst(self) -> OutputReport:
        """The output that is furthest out: a failed one where there is one."""
        return max(self.outputs, key=lambda output: (not output.passed, output.smallest_tolerance))
