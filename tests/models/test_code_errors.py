"""Code of a model's own is run only if the user trusts it."""

from __future__ import annotations

import pytest
import transformers

from tests.models.refusals import edit_config, refusal
from thunder_core.foundation.errors import (
    RemoteCodeRefused,
)
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest

CODE = """
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel, LlamaConfig, LlamaForCausalLM
Path(__file__).parent  # imported
class OwnConfig(LlamaConfig):
    model_type = "own_family"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own_code(folder):
    """A folder whose family exists in a Python file of its own only."""
    (folder / "own.py").write_text(CODE)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    edit_config(folder, model_type="own_family", architectures=["OwnForCausalLM"], auto_map=auto_map)
    return folder


def test_code_of_the_models_own_is_refused(own_code):
    error = refusal(own_code, RemoteCodeRefused)
    assert "the family 'own_family'" in error.what
    assert "--trust-remote-code" in error.fix
    assert (error.code, error.status) == ("TH0210", 2)


def test_a_class_of_the_models_own_in_a_known_family_is_refused_too(folder):
    edit_config(folder, architectures=["OwnForCausalLM"], auto_map={"AutoModelForCausalLM": "own.OwnForCausalLM"})
    assert "OwnForCausalLM" in refusal(folder, RemoteCodeRefused).what
    refusal(folder, RemoteCodeRefused, task="causal-lm")


def test_code_is_not_run_where_transformers_has_the_class(folder):
    (folder / "own.py").write_text("raise SystemExit('the code was run')")
    edit_config(folder, auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"})
    assert type(load_model(ModelRequest(model=str(folder))).model) is transformers.LlamaForCausalLM


def test_trusted_code_is_run(own_code, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    loaded = load_model(ModelRequest(model=str(own_code), trust_remote_code=True, task="causal-lm"))
    assert type(loaded.model).__name__ == "OwnForCausalLM"
    assert loaded.source["trust_remote_code"] is True


KERNELS = {
    "the attention": {"attn_implementation": "evil/kernel"},
    "the attention, as it is saved": {"_attn_implementation": "evil/kernel@main:run"},
    "a part's": {"text_config": {"vision": [{"attn_implementation": {"": "sdpa", "text": "evil/kernel"}}]}},
    "the experts": {"experts_implementation": "evil/kernel"},
}


@pytest.mark.parametrize("kind", KERNELS)
def test_code_of_the_hub_is_refused(folder, kind):
    """Which transformers would fetch and run where its kernels are installed."""
    edit_config(folder, **KERNELS[kind])
    error = refusal(folder, RemoteCodeRefused)
    assert "evil/kernel" in error.what
    assert "--trust-remote-code" in error.fix
