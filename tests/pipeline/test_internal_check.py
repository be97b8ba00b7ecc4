"""The internal check as a part of validation."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import WrongResult
from thunder_core.passes.recipe import Recipe, Tolerance
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.report import render_html, render_markdown

hidden = thunder.OperatorExecutor("hidden")


@hidden.implements(torch.Tensor.cos)
def cos_a_little_wrong(x):
    return torch.cos(x) * (1 + 3e-6)


class Hidden(Recipe):
    """A recipe whose executor has an error too small to show in the outputs of a model with little attention."""

    executors = (hidden, "torch")


class Loose(Hidden):
    """A recipe that allows this error."""

    def tolerance(self, dtype):
        return Tolerance(times_eager=2.0, floor=1e-3, kl=1e-5)


wrong = thunder.OperatorExecutor("wrong")


@wrong.implements(torch.nn.functional.silu)
def silu_a_little_wrong(x, inplace=False):
    return torch.nn.functional.silu(x) * 1.001


class WrongSilu(Recipe):
    """A recipe whose executor is wrong."""

    executors = (wrong, "torch")


def test_a_line_is_found_that_the_outputs_hide(out):
    with pytest.raises(WrongResult, match=r"the outputs agree, but a line inside is wrong: `t\d+ = .*cos") as caught:
        optimize(quick(out, Hidden))
    assert "--without hidden" in caught.value.fix
    assert not out.exists()


def test_a_failed_validation_names_the_line(out):
    with pytest.raises(WrongResult, match="the first wrong line is `t") as caught:
        optimize(quick(out, WrongSilu))
    assert "--without wrong:model.layers.0.mlp.act_fn" in caught.value.fix


def test_a_recipe_that_allows_an_error_is_believed(out):
    report = optimize(quick(out, Loose)).report
    assert report.internal_check is not None
    assert not report.internal_check.faults


@pytest.mark.parametrize("train", [False, True])
def test_the_report_shows_the_internal_check(out, train):
    report = optimize(quick(out, "default", train=train)).report
    internal_check = report.internal_check
    assert internal_check is not None
    assert internal_check.compared > 0
    assert not internal_check.faults
    assert {line.trace for line in internal_check.lines} <= {"computation", "backward"}
    assert all(line.used <= 1.0 for line in internal_check.lines)
    assert "Internal check" in render_html(report)
    assert "## Internal check" in render_markdown(report)


def test_programs_that_generate_are_looked_into(out):
    model = ModelRequest(sample=SAMPLES["llama"], task="generate")
    lengths = {"prompt_length": 9, "new_tokens": 3, "validate": True, "benchmark": False}
    report = optimize(Request(recipe="hf-llama", model=model, out=out, **lengths)).report
    assert report.internal_check is not None
    assert report.internal_check.compared > 0
