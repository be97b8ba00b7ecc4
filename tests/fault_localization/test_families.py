"""No fault is found in right programs of the ten families."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.families import FAMILIES, inputs_for, sample
from tests.planted.subject import subject
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.workflow.fault_localization.examination import examine

NARROW = ("llama", "bert", "vit", "t5")


def faults_of(family: str, dtype: str, *, train: bool):
    """The faults in the program of a family that eager PyTorch runs."""
    loaded = sample(family, dtype)
    model, inputs = loaded.model.train(train), inputs_for(loaded, labels=train)
    compiled = thunder.jit(model, executors=["torch"])
    with torch.set_grad_enabled(train):
        for _ in range(2):
            output = compiled(**inputs)
        if train:
            output.loss.backward()
        return examine(last_program(compiled), model, (), inputs).faults


@pytest.mark.sample(10)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_false_alarm_in_float32(family, train):
    assert not faults_of(family, "float32", train=train)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", NARROW)
def test_no_false_alarm_in_narrow_dtypes(family, dtype):
    assert not faults_of(family, dtype, train=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_no_false_alarm_with_inductor(family, train):
    own = subject(family, train=train)
    assert not own.examined(own.program, probe_guards=True)
