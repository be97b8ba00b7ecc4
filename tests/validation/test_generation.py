"""Validation of generation: tokens and divergences of two models that are not compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.generation.models import model_of, prompt_of
from thunder_core.foundation.errors import AllZero, NotFinite, OutOfTolerance
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation.generation import validate_generation
from thunder_core.workflow.validation.report import GenerationReport

TOLERANCE = Tolerance(kl=1e-5)


def validate_prompts(optimized: Any, model: Any, tolerance: Tolerance = TOLERANCE, **options: Any) -> GenerationReport:
    """The report on a single prompt, and on two prompts that are padded on the left."""
    two = prompt_of(2, 6)
    mask = torch.ones_like(two)
    two[1, :2] = mask[1, :2] = 0
    prompts = [("1 x 5", {"input_ids": prompt_of(1, 5)}), ("2 x 6", {"input_ids": two, "attention_mask": mask})]
    return validate_generation(optimized, model, prompts, 8, tolerance, progress=lambda done, total: None, **options)


@pytest.fixture
def model() -> Any:
    return model_of("llama")


def changed(model: Any, by: float) -> Any:
    """The model with other weights in its head."""
    other = copy.deepcopy(model)
    noise = torch.randn(other.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        other.lm_head.weight.add_(by * noise)
    return other


def test_a_model_equals_itself(model: Any) -> None:
    report = validate_prompts(model, model)
    assert report.passed and report.exact
    assert [(prompt.size, prompt.tokens, prompt.equal, prompt.first_difference) for prompt in report.prompts] == [
        ("1 x 5", 8, 8, None),
        ("2 x 6", 16, 16, None),
    ]
    assert {step for prompt in report.prompts for step in prompt.divergences} == {0.0}


def test_divergences_match_the_textbook_after_eagers_tokens(model: Any) -> None:
    other = changed(model, 1e-4)
    report = validate_prompts(other, model, Tolerance(kl=1.0))
    ids = prompt_of(1, 5)
    tokens = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        logits, others = (each_model(tokens[:, :-1]).logits[0, 4:].double() for each_model in (model, other))
    expected = torch.nn.functional.kl_div(others.log_softmax(-1), logits.softmax(-1), reduction="none").sum(-1)
    torch.testing.assert_close(torch.tensor(report.prompts[0].divergences), expected.float(), rtol=1e-3, atol=1e-9)


def test_other_tokens_are_out_of_tolerance_in_float32(model: Any) -> None:
    with pytest.raises(
        OutOfTolerance, match=r"tokens agree with eager's, and all must agree; the first difference is at token \d"
    ) as no:
        validate_prompts(changed(model, 0.3), model, Tolerance(kl=100.0, top1=0.0))
    report = no.value.report
    assert isinstance(report, GenerationReport) and not report.passed
    assert report.worst.first_difference is not None


def test_in_less_precise_dtypes_a_share_of_the_tokens_is_enough(model: Any) -> None:
    model.to(torch.bfloat16)
    report = validate_prompts(changed(model, 0.3), model, Tolerance(kl=100.0, top1=0.0))
    assert report.passed and not report.exact and report.equal < report.tokens


def test_distributions_that_diverge_are_out_of_tolerance_though_no_token_differs(model: Any) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(1.01)
    with pytest.raises(OutOfTolerance, match=r"its distributions from eager's is .* nats") as no:
        validate_prompts(other, model)
    assert isinstance(no.value.report, GenerationReport)
    assert no.value.report.equal == no.value.report.tokens


def test_non_finite_or_zero_eager_logits_are_refused(model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight.fill_(0.0)
    with pytest.raises(AllZero):
        validate_prompts(model, model)
    assert validate_prompts(model, model, allow_non_finite=True).passed
    with torch.no_grad():
        model.lm_head.weight[3].fill_(torch.nan)
    with pytest.raises(NotFinite, match="24 of 24 next-token distributions"):
        validate_prompts(model, model)


def test_a_model_with_nan_unlike_eager_is_out_of_tolerance(model: Any) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.lm_head.weight[3].fill_(torch.nan)
    with pytest.raises(OutOfTolerance, match="nan nats"):
        validate_prompts(broken, model)
