"""The results of a validation as plain data, which is part of the report of a run."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation.internal_check import InternalCheck
from thunder_core.workflow.validation.report_facts import ReportFacts

LOSS, GRADIENT = "loss", ".grad"  # the name of an output, and the ending of gradients' names
AFTER_CALL = " after the call"  # the ending for buffers, attributes and inputs that a call changed


class Errors(ReportFacts):
    """The absolute errors of an output compared with the reference."""

    maximum: float
    mean: float
    median: float
    p99: float


class LanguageReport(ReportFacts):
    """The agreement of a language model's logits with the reference."""

    kl: float
    """The mean over positions of the KL divergence of the optimized model from the reference, in nats."""
    eager_kl: float
    """The mean over positions of the KL divergence of eager PyTorch from the reference, in nats."""
    top1: float
    """The share of positions whose most probable token is the reference's, or is undecided."""
    undecided: float
    """The share of positions at which the reference's two best tokens differ by at most twice eager's largest error."""


class OutputReport(ReportFacts):
    """One output, gradient or changed state; the errors and the scale are from the input with the worst result."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    optimized: Errors
    eager: Errors
    scale: float
    """The largest magnitude in the reference. For a gradient that is only rounding, the largest of all gradients."""
    cosine: float
    language: LanguageReport | None
    smallest_tolerance: float
    """The smallest `times_eager` that would have passed; infinite if no value would."""
    passed: bool
    failures: tuple[str, ...]
    elements: int = 0
    """The number of compared elements, over all inputs; 0 in reports of earlier versions."""
    nan: int = 0
    """The number of elements that are NaN in eager's result or in the reference."""
    infinite: int = 0
    """The number of elements that are infinite in eager's result or in the reference, and NaN in neither."""
    finite_in_eager: bool = True
    all_zero: bool = False
    """Whether all elements of eager's result are zero on every input."""

    @property
    def is_gradient(self) -> bool:
        """Whether this is the gradient of a parameter."""
        return self.name.endswith(GRADIENT)

    @property
    def is_state(self) -> bool:
        """Whether this is a buffer, an attribute or an input after a call that changed it."""
        return self.name.endswith(AFTER_CALL)

    @property
    def finite(self) -> bool:
        """Whether eager's result and the reference have no NaN and no infinities."""
        return not (self.nan or self.infinite)

    @property
    def is_floating(self) -> bool:
        """Whether the dtype is floating or complex; other dtypes have no NaN and no infinities."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def remark(self) -> str:
        """A remark on NaN, infinities and zeros: `NaN: 3 of 128`, `all zeros`; empty for most outputs."""
        counts = (("NaN", self.nan), ("infinite", self.infinite))
        remarks = [f"{kind}: {_share(number, self.elements)}" for kind, number in counts if number]
        return ", ".join([*remarks, *(["all zeros"] if self.all_zero else [])])


def _share(number: int, elements: int) -> str:
    return f"all {elements:,}" if number == elements else f"{number:,} of {elements:,}"


class Evaluation(ReportFacts):
    """A metric on real samples, for eager PyTorch (`before`) and for the optimized model (`after`)."""

    metric: str
    """`accuracy`, `perplexity` (of the labels), `mse` (mean squared error) or `cosine` (to eager's embeddings)."""
    file: str
    """The file's name, and the first digits of its SHA-256."""
    samples: int
    counted: int
    """The number of labels; for the cosine, the number of samples."""
    before: float
    after: float


class SizeReport(ReportFacts):
    """The inputs of one size, if several sizes were validated: the output with the worst result, and its errors."""

    size: str
    """The size, such as `4 x 320`: samples, and tokens in each sample."""
    inputs: int
    output: str
    optimized: float
    """The largest error of that output against the reference."""
    eager: float
    """The largest error of eager's output against the reference."""
    passed: bool
    """Whether every output passed."""


class PromptReport(ReportFacts):
    """The new tokens of one batch of prompts: eager's tokens, and the tokens that the optimized model would choose."""

    size: str
    """The size, such as `8 x 128, padded`: prompts, and tokens in the longest prompt."""
    tokens: int
    """The number of compared tokens, over all prompts and steps."""
    equal: int
    """The number of positions at which both models choose the same next token."""
    first_difference: int | None = None
    """The first step, counted from 1, at which a token differs; None if all are equal."""
    divergences: tuple[float, ...]
    """The KL divergence of the next-token distribution from eager's at each step, in nats, mean over the prompts."""
    passed: bool
    failures: tuple[str, ...] = ()

    @property
    def mean_divergence(self) -> float:
        """The mean divergence over the steps."""
        return sum(self.divergences) / len(self.divergences)

    @property
    def largest_divergence(self) -> float:
        """The largest divergence of a step."""
        return max(self.divergences)


class GenerationReport(ReportFacts):
    """Greedy generation of the optimized model compared with eager's, for several prompt lengths and batch sizes."""

    passed: bool
    new_tokens: int
    dtype: str
    exact: bool
    """Whether every token must be equal to eager's; else the tolerance gives the required share."""
    tolerance: Tolerance
    prompts: tuple[PromptReport, ...]
    notes: tuple[str, ...] = ()
    internal_check: InternalCheck | None = None
    """The line-by-line check of the programs, each on the inputs of one call; None without traces."""

    @property
    def tokens(self) -> int:
        """The number of compared tokens."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def equal(self) -> int:
        """The number of tokens that are equal to eager's."""
        return sum(prompt.equal for prompt in self.prompts)

    @property
    def worst(self) -> PromptReport:
        """The prompts with the worst result; failed prompts come first."""
        return max(
            self.prompts,
            key=lambda prompt: (not prompt.passed, prompt.tokens - prompt.equal, prompt.largest_divergence),
        )


class LayerQuality(ReportFacts):
    """A quantized layer compared with the float layer of its name."""

    name: str
    kind: str
    """The class of the quantized layer, such as `Int8DynamicLinear`."""
    float_bytes: int
    """The size of the float weight in bytes."""
    bytes: int
    """The size of the codes with their scales in bytes."""
    error: float | None
    """The norm of the difference of both results, relative to the float result's norm; None if it was not called."""


class QuantizationReport(ReportFacts):
    """A quantized model compared with the float model in eager PyTorch: errors of layers and outputs, and sizes."""

    passed: bool
    inputs: int
    bound: Quality
    output: str
    """The output with the largest error."""
    error: float
    """The norm of the difference of the output, relative to the norm of the float output."""
    kl: float | None
    """The KL divergence of the logits from the float model's in nats; None without logits.

    It is the mean over the positions of each input, and then over the inputs.
    """
    top1: float | None
    """The share of positions whose most probable token is the float model's; None without logits."""
    layers: tuple[LayerQuality, ...]
    float_bytes: int
    """The size of all weights and buffers of the float model in bytes; tied weights count once."""
    bytes: int
    """The size of all weights and buffers of the quantized model in bytes; tied weights and shared codes count once."""
    failures: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """The layers that were left in float to meet the bound."""
    calibrated: str = ""
    """The calibration data in words; empty without calibration."""

    @property
    def ranked(self) -> list[LayerQuality]:
        """The layers, the largest error first."""
        return sorted(self.layers, key=lambda layer: -(layer.error or 0.0))

    @property
    def summary(self) -> str:
        """The number of quantized layers and the error of the outputs, in words."""
        layers = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'} quantized"
        logits = "" if self.kl is None else f", KL divergence {self.kl:.2g} nats, top-1 agreement {self.top1:.1%}"
        return f"{layers}; relative error of {self.output} {self.error:.2g}{logits}"


class ValidationReport(ReportFacts):
    """Every output of the optimized model and of eager PyTorch, each compared with a reference in higher precision."""

    passed: bool
    inputs: int
    reference_dtype: str
    by_layer: bool = False
    """Whether the reference's weights were converted one layer at a time, when each was read."""
    tolerance: Tolerance
    outputs: tuple[OutputReport, ...]
    notes: tuple[str, ...]
    untraced: bool = False
    """Whether none of the inputs had been traced; False if that is not known."""
    sizes: tuple[SizeReport, ...] = ()
    """The report of each size, if there were several."""
    internal_check: InternalCheck | None = None
    """The line-by-line check of the program on one input; None if its traces are not available."""

    @property
    def inputs_in_words(self) -> str:
        """The number of inputs in words: `3 inputs that were not traced`."""
        counted = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        return f"{counted} that {'was' if self.inputs == 1 else 'were'} not traced" if self.untraced else counted

    @property
    def reference_in_words(self) -> str:
        """The dtype of the reference, and how its weights were converted: `float64, one layer at a time`."""
        return f"{self.reference_dtype}, one layer at a time" if self.by_layer else self.reference_dtype

    def allowed_error(self, output: OutputReport) -> float:
        """Return the largest error that the tolerance allows for an output."""
        return self.tolerance.times_eager * output.eager.maximum + self.tolerance.floor * output.scale

    @property
    def ranked(self) -> list[OutputReport]:
        """The outputs: failed outputs, then outputs with a remark, then others, by their share of the allowed error."""
        return sorted(self.outputs, key=lambda output: (output.passed, not output.remark, -self._used_share(output)))

    @property
    def vacuous(self) -> bool:
        """Whether every floating output is zero in eager, so that a program that returns zeros would pass."""
        floating = [output for output in self.outputs if output.is_floating and output.elements and not output.is_state]
        return bool(floating) and all(output.all_zero for output in floating)

    def _used_share(self, output: OutputReport) -> float:
        return output.optimized.maximum / (self.allowed_error(output) or 1.0)

    @property
    def worst(self) -> OutputReport:
        """The output with the worst result; failed outputs come first."""
        return max(self.outputs, key=lambda output: (not output.passed, output.smallest_tolerance))
