"""Whole optimizations of training steps: dropout, buffers, and operations that autograd records."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import NothingToTrain
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.artifact import load, open_artifact
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import optimize
from thunder_core.workflow.pipeline.request.purpose import Purpose


class Plain(Recipe):
    """A recipe with the operations of eager PyTorch."""

    executors = ("torch",)


@pytest.mark.parametrize("sample", ["bert", "gpt2", "t5"])
def test_dropout_numbers_are_eagers_if_eager_operations_run(out, sample):
    outcome = optimize(quick(out, Plain(), sample, train=True, benchmark=False, batch=2))
    validation = outcome.report.validation
    assert validation.reference_dtype == "float64"
    assert all(output.optimized == output.eager for output in validation.outputs)
    assert any(isinstance(module, torch.nn.Dropout) and module.p for module in outcome.compiled.modules())
    assert outcome.compiled.training


def test_with_dropout_under_a_fusing_executor(out):
    report = optimize(quick(out, "hf-bert", "bert", train=True)).report
    assert report.validation.passed
    assert [share.executor for share in report.executors] == ["inductor", "torch"]
    assert report.executors[0].backward > 0
    assert any("bernoulli" in operation.name for operation in report.operations)


@pytest.mark.usefixtures("without_kernels")
def test_bfloat16_has_the_tolerance_of_its_dtype(out):
    model = ModelRequest(sample=SAMPLES["llama"], dtype="bfloat16")
    request = replace(quick(out, "hf-llama", train=True, benchmark=False), model=model)
    validation = optimize(request).report.validation
    assert validation.tolerance == Plain().tolerance(torch.bfloat16)
    assert {output.dtype for output in validation.outputs if output.name.endswith(".grad")} == {"bfloat16"}


def test_nothing_of_the_training_stays_on_the_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    model[0].weight.grad = kept = torch.ones(4, 4)
    mean = model[1].running_mean.clone()
    with Purpose(train=True).ready(model):
        assert model.training
        assert model[0].weight.grad is None
        step = Purpose(train=True).call(lambda x: {"loss": model(x).pow(3).sum()}, model)
        step(x=torch.randn(8, 4))
        assert model[0].weight.grad is not None
        assert not torch.equal(model[1].running_mean, mean)
    assert model[0].weight.grad is kept
    assert torch.equal(model[1].running_mean, mean)


def test_frozen_parameters_have_no_gradients_and_frozen_models_no_training():
    model = torch.nn.Linear(2, 2)
    with Purpose(train=True).ready(model.requires_grad_(True)):
        pass
    with pytest.raises(NothingToTrain), Purpose(train=True).ready(model.requires_grad_(False)):
        pass
    with Purpose().ready(model):
        assert not model.training


def test_loaded_model_is_in_the_mode_of_its_artifact(out):
    optimize(quick(out, Plain(), "llama", train=True, benchmark=False, validate=False, include_weights=True))
    assert open_artifact(out).manifest.train
    assert json.loads((out / "report.json").read_text())["train"]
    assert load(out).training
    optimize(quick(out, Plain(), "llama", benchmark=False, validate=False, force=True))
    assert not open_artifact(out).manifest.train
    assert not load(out).training
