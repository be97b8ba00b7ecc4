"""Fingerprints of models differ if and only if the models differ."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint, weights_fingerprint
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES


def llama(seed: int = 0, dtype: str | None = None, **changes: object):
    sample = SampleModel("LlamaForCausalLM", {**SAMPLES["llama"].config, **changes})
    return load_model(ModelRequest(sample=sample, seed=seed, dtype=dtype)).model


def test_other_weights_are_another_model_of_the_same_structure():
    one, other = llama(seed=0), llama(seed=1)
    assert structure_fingerprint(one) == structure_fingerprint(other)
    assert weights_fingerprint(one) != weights_fingerprint(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"num_hidden_layers": 1},
        {"rms_norm_eps": 1e-3},
        {"hidden_act": "gelu"},
        {"tie_word_embeddings": True},
        {"attn_implementation": "eager"},
    ],
)
def test_another_config_is_another_structure(changes):
    assert structure_fingerprint(llama()) != structure_fingerprint(llama(**changes))


def test_one_number_changes_the_weights():
    model = llama()
    before = weights_fingerprint(model)
    with torch.no_grad():
        model.model.norm.weight[3] += 1e-3
    assert weights_fingerprint(model) != before


def test_a_buffer_is_a_part_of_the_weights():
    model = torch.nn.BatchNorm1d(4)
    before = weights_fingerprint(model)
    model.num_batches_tracked += 1
    assert weights_fingerprint(model) != before


def test_ties_are_a_part_of_the_structure():
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    loose = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    assert structure_fingerprint(tied) == structure_fingerprint(loose)
    tied[1].weight = tied[0].weight
    assert structure_fingerprint(tied) != structure_fingerprint(loose)


def test_class_names_are_a_part_of_the_structure():
    assert structure_fingerprint(torch.nn.ReLU()) != structure_fingerprint(torch.nn.GELU())


def test_the_place_is_not_a_part_of_the_structure():
    model = llama()
    assert structure_fingerprint(model.to("meta")) == structure_fingerprint(llama())


@pytest.mark.parametrize("name", ["llama", "vit", "bert"])
def test_a_call_does_not_change_the_fingerprint(name):
    loaded = load_model(ModelRequest(sample=SAMPLES[name]))
    before = structure_fingerprint(loaded.model), weights_fingerprint(loaded.model)
    with torch.no_grad():
        loaded.model(**example_inputs(loaded, batch=1, seq=4, seed=0, labels=True))
    assert (structure_fingerprint(loaded.model), weights_fingerprint(loaded.model)) == before


def test_the_loaded_models_fingerprint_is_the_fingerprint_of_its_structure():
    loaded = load_model(ModelRequest(sample=SAMPLES["gpt2"]))
    assert loaded.fingerprint == structure_fingerprint(loaded.model)
    assert dataclasses.replace(loaded).fingerprint == loaded.fingerprint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int8, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_dtype_and_any_strides_are_hashed(dtype):
    model = torch.nn.Module()
    model.register_buffer("held", torch.ones(3, 4).to(dtype).t())
    model.register_buffer("scalar", torch.tensor(1.0).to(dtype))
    before = weights_fingerprint(model)
    model.held = torch.zeros(3, 4).to(dtype).t()
    assert weights_fingerprint(model) != before
