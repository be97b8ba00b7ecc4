"""Validate generation: compare the tokens that the optimized model would choose, and its next-token distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessor

from thunder_core.foundation.errors import AllZero, NotComparable, NotFinite, OutOfTolerance
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.library.examination import validating
from thunder_core.workflow.validation.degenerate_outputs import ACCEPT
from thunder_core.workflow.validation.language import divergences, valid_positions
from thunder_core.workflow.validation.report import GenerationReport, PromptReport

Prompt = Mapping[str, torch.Tensor]  # the keyword arguments of `generate`: tokens, and their mask
EXACT_DTYPES = (torch.float32, torch.float64)  # the dtypes in which every greedy token must be equal to eager's
UNDEFINED = (
    "{} of {} next-token distributions of eager PyTorch contain NaN or +inf, or only -inf; "
    "only the others were compared"
)


class TeacherForcing(LogitsProcessor):
    """A logits processor that makes generation continue with fixed tokens, and records the model's own choices."""

    def __init__(self, tokens: torch.Tensor) -> None:
        """Continue with `tokens` of shape [batch, steps]."""
        self.tokens = tokens
        self.chosen: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return scores that allow only the fixed token of this step."""
        token = self.tokens[:, len(self.chosen)]
        self.chosen.append(scores.argmax(-1))
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter_(1, token.unsqueeze(1), 0.0)


def generate(model: Any, prompt: Prompt, new_tokens: int, **options: object) -> Any:
    """Generate exactly `new_tokens` tokens greedily with the transformers library, and return its result."""
    lengths = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    return model.generate(**prompt, **lengths, do_sample=False, num_beams=1, **options)


def validate_generation(
    optimized: Any,
    model: Any,
    prompts: Sequence[tuple[str, Prompt]],
    new_tokens: int,
    tolerance: Tolerance,
    *,
    dtype: torch.dtype | None = None,
    allow_non_finite: bool = False,
    progress: Callable[[int, int], None],
) -> GenerationReport:
    """Compare the optimized model with eager on prompts; each pair in `prompts` is a size in words and a prompt.

    Eager generates greedily. The optimized model continues with eager's tokens (teacher forcing), so that both models
    read the same tokens at each step. Their choices of tokens and their distributions are compared. If all choices are
    equal, greedy generation by the optimized model gives the same tokens as eager's. In float32 and float64, all tokens
    must be equal; in other dtypes, at least the share `top1` of the tolerance. The mean divergence must be at most the
    tolerance's `kl`. `dtype` is the dtype in which the models compute; the default is `model.dtype`.

    Raises OutOfTolerance, NotFinite and AllZero with the report as their `report`, and NotComparable if the logits have
    another shape.
    """
    dtype = dtype or model.dtype
    exact = dtype in EXACT_DTYPES
    comparisons = []
    for number, (size, prompt) in enumerate(prompts):
        comparisons.append(_compare(optimized, model, size, prompt, new_tokens))
        progress(number + 1, len(prompts))
    report = GenerationReport(
        passed=True,
        new_tokens=new_tokens,
        dtype=dtype_name(dtype),
        exact=exact,
        tolerance=tolerance,
        prompts=tuple(_judge(prompt, tolerance, exact=exact) for prompt, _, _ in comparisons),
        notes=tuple(_notes(comparisons)),
    )
    report = report.model_copy(update={"passed": all(prompt.passed for prompt in report.prompts)})
    if not allow_non_finite:
        _require_conclusive(report, comparisons)
    _require_passed(report)
    return report


# The report on prompts, the number of eager's undefined distributions, and whether all of eager's logits are zero.
Compared = tuple[PromptReport, int, bool]


def _compare(optimized: object, model: object, size: str, prompt: Prompt, new_tokens: int) -> Compared:
    """Compare both models on one batch of prompts."""
    options = {"return_dict_in_generate": True, "output_logits": True}
    eager = generate(model, prompt, new_tokens, **options)
    tokens = eager.sequences[:, -new_tokens:]
    forcing = TeacherForcing(tokens)
    with validating():
        optimized_output = generate(optimized, prompt, new_tokens, logits_processor=[forcing], **options)
    _require_same_shapes(size, optimized_output.logits, eager.logits)
    chosen = torch.stack(forcing.chosen, 1)
    equal = chosen == tokens
    differing = (~equal).any(0).nonzero()
    steps = [
        _divergence(optimized_step, eager_step)
        for optimized_step, eager_step in zip(optimized_output.logits, eager.logits, strict=True)
    ]
    report = PromptReport(
        size=size,
        tokens=equal.numel(),
        equal=int(equal.sum()),
        first_difference=int(differing[0]) + 1 if len(differing) else None,
        divergences=tuple(mean for mean, _ in steps),
        passed=True,
    )
    return report, sum(undefined for _, undefined in steps), not any(bool(logits.any()) for logits in eager.logits)


def _require_same_shapes(size: str, optimized_output: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> None:
    shapes = [[tuple(step.shape) for step in logits] for logits in (optimized_output, eager)]
    if shapes[0] != shapes[1]:
        raise NotComparable(
            f"the logits for prompts of {size} have the shapes {set(shapes[0])}, but eager's have {set(shapes[1])}",
            fix="leave out the executors and transforms that change shapes",
        )


def _divergence(optimized: torch.Tensor, eager: torch.Tensor) -> tuple[float, int]:
    """Return the mean KL(eager || optimized) at one step, in nats, and the number of prompts without a distribution.

    The mean is over the prompts for which eager has a distribution; 0 if there are none.

    KL(p || q) is the sum of p (ln p - ln q) over the tokens (Kullback and Leibler, On Information and Sufficiency, Ann.
    Math. Statist. 22, 1951); the natural logarithm gives nats. The mean is NaN if the optimized model has no
    distribution for one of these prompts, or logits of -inf for other tokens than eager.
    """
    defined = valid_positions(eager)
    broken = defined & ~valid_positions(optimized, eager)
    if bool(broken.any()):
        return float("nan"), int((~defined).sum())
    values = divergences(optimized[defined].double(), eager[defined].double())
    return float(values.mean()) if len(values) else 0.0, int((~defined).sum())


def _judge(report: PromptReport, tolerance: Tolerance, *, exact: bool) -> PromptReport:
    """Return the report with the verdict."""
    failures = [*_token_failures(report, tolerance, exact=exact)]
    if not report.mean_divergence <= tolerance.kl:  # also if it is NaN
        failures.append(
            f"the KL divergence of its distributions from eager's is {report.mean_divergence:.3g} nats, and at most "
            f"{tolerance.kl:.3g} is allowed"
        )
    return report.model_copy(update={"passed": not failures, "failures": tuple(failures)})


def _token_failures(report: PromptReport, tolerance: Tolerance, *, exact: bool) -> list[str]:
    share = report.equal / report.tokens
    if share >= (1.0 if exact else tolerance.top1):
        return []
    requirement = "all must agree" if exact else f"{tolerance.top1:.2%} must agree"
    agreement = f"{report.equal} of its {report.tokens} tokens agree with eager's, and {requirement}"
    return [f"{agreement}; the first difference is at token {report.first_difference or 1}"]


def _notes(comparisons: Sequence[Compared]) -> list[str]:
    undefined = sum(count for _, count, _ in comparisons)
    return [UNDEFINED.format(undefined, sum(report.tokens for report, _, _ in comparisons))] if undefined else []


def _require_conclusive(report: GenerationReport, comparisons: Sequence[Compared]) -> None:
    """Raise `NotFinite` or `AllZero` if agreement with eager would prove nothing."""
    error: NotFinite | AllZero
    if report.notes:
        error = NotFinite(
            f"the logits are infinite or NaN in eager PyTorch: {report.notes[0]}",
            fix=f"use a --dtype with a wider range (bfloat16, float32), or check the weights; {ACCEPT}",
        )
    elif all(zeros for _, _, zeros in comparisons):
        error = AllZero(
            "all logits are zero in eager PyTorch, so a comparison does not validate anything",
            fix=f"check the weights (an initialization with zeros, or weights that were not loaded); {ACCEPT}",
        )
    else:
        return
    error.report = report
    raise error


def _require_passed(report: GenerationReport) -> None:
    """Raise `OutOfTolerance` if any prompts failed."""
    if report.passed:
        return
    worst = report.worst
    failed = sum(not prompt.passed for prompt in report.prompts)
    error = OutOfTolerance(
        f"generation for prompts of {worst.size} differs from eager's: {'; '.join(worst.failures)} ({failed} of "
        f"{len(report.prompts)} batches of prompts failed)",
        fix="leave out the recipe's transforms and executors one at a time to find the cause",
    )
    error.report = report
    raise error
