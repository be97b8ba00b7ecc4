"""A recipe with the `debug` executor: executors are compared once, and the artifact contains the program without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import thunder_core as thunder
from tests.pipeline.conftest import Watcher, quick
from thunder_core.backend.claiming.check import Check
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import BadOption, WrongResult
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.pipeline import optimize, plan
from thunder_core.workflow.pipeline.request.request import INPUTS
from thunder_core.workflow.pipeline.session.progress import COMPARE
from thunder_core.workflow.report import render_html, render_markdown

silent = thunder.OperatorExecutor("silent")


@silent.implements(torch.nn.functional.silu)
def silu_by_tanh(x, inplace=False):
    return x * (1 + torch.tanh(x / 2)) / 2


wrong = thunder.OperatorExecutor("wrong")


@wrong.implements(torch.nn.functional.silu)
def relu_in_its_place(x, inplace=False):
    return torch.relu(x)


class Right(Recipe):
    """A recipe whose executor is right."""

    executors = (silent, "torch")


class Wrong(Recipe):
    """A recipe whose executor is wrong."""

    executors = (wrong, "torch")


def test_a_plan_says_that_executors_are_compared(out):
    planned = plan(quick(out, (Right, "debug")))
    rows = dict(planned.rows())
    assert rows["comparison"].startswith("debug compares the other executors")
    assert rows["executors"] == "silent, torch"
    assert planned.as_data()["comparison"] == ["debug"]
    assert planned.stages.index(COMPARE) == planned.stages.index("validate") - 1
    assert COMPARE not in plan(quick(out, Right)).stages


def test_nothing_is_compared_for_a_gpu_that_is_not_here(out):
    with pytest.raises(BadOption, match=r"--target sm_90 and the executor debug .* exclude each other"):
        plan(quick(out, (Right, "debug"), target="sm_90"))


@pytest.mark.parametrize("train", [False, True])
def test_executors_are_compared_and_the_artifact_lacks_the_debug_executor(out, train):
    watcher = Watcher()
    outcome = optimize(quick(out, (Right, "debug"), benchmark=False, train=train), watcher)
    report = outcome.report
    assert watcher.begun.count(COMPARE) == 1
    [row] = [line for line in report.comparison.operations if not line.left_out]
    assert (report.comparison.by, row.executor) == ("debug", "silent")
    assert row.operations == ("torch.nn.functional.silu",)
    assert (row.claims, row.compared) == (2, 2), "a layer each"
    assert 0 < row.largest < 1e-6
    assert "2 claims of silent agree with eager PyTorch" in report.comparison.summary
    assert all("2 claims of silent" in render(report) for render in (render_html, render_markdown))
    assert report.validation.passed
    assert report.recipe.executors == ("silent", "torch")
    assert open_artifact(outcome.artifact).manifest.recipe == "debug + right"
    traces = [stage.trace for program in specializations_of(outcome.compiled).programs for stage in program.stages]
    called = [bsym.symbol.target for trace in traces for bsym in trace.bound_symbols]
    assert called
    assert not [function for function in called if isinstance(function, Check)]


def test_the_first_wrong_claim_ends_the_comparison(out):
    with pytest.raises(
        WrongResult, match=r"the executor wrong computes a wrong result for torch.nn.functional.silu in .*mlp"
    ):
        optimize(quick(out, (Wrong, "debug"), validate=False, benchmark=False))
    assert list(out.parent.iterdir()) == []


def test_executors_are_compared_at_the_points_of_ranges(out):
    outcome = optimize(quick(out, (Right, "debug"), benchmark=False, dynamic={"seq": (2, 12)}))
    [row] = outcome.report.comparison.operations
    assert row.compared == 2 * len(plan(quick(None, Right, dynamic={"seq": (2, 12)})).points)


def test_executors_are_compared_as_they_generate(out):
    generation = {"seq": None, "inputs": INPUTS, "batch": 1, "prompt_length": 4, "new_tokens": 2}
    request = quick(out, (Right, "debug"), benchmark=False, validate=False, **generation)
    [row] = optimize(replace(request, model=replace(request.model, task="generate"))).report.comparison.operations
    assert (row.executor, row.claims > 2, row.compared > row.claims) == ("silent", True, True)


def test_nothing_is_compared_if_eager_pytorch_runs_everything(out):
    comparison = optimize(quick(out, "debug", benchmark=False)).report.comparison
    assert comparison.operations == ()
    assert comparison.summary == "nothing was compared: eager PyTorch ran all operations"
