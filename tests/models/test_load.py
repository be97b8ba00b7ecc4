"""Samples and folders are loaded with their weights, dtype and head, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json
import logging as standard_logging
import shutil
import warnings

import pytest
import torch
import transformers
from transformers.utils import logging

from tests.models.weights import same_weights
from thunder_core.foundation.errors import BadModelFolder, BadOption, ModelNotFound, UnknownArchitecture
from thunder_core.workflow.models.loading.library_output import messages_for_users, quiet_transformers
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_is_built_the_same_every_time(name):
    torch.manual_seed(7)
    one = load_model(ModelRequest(sample=SAMPLES[name], seed=3))
    torch.manual_seed(8)
    other = load_model(ModelRequest(sample=SAMPLES[name], seed=3))
    assert type(one.model).__name__ == SAMPLES[name].architecture
    assert not one.model.training
    assert same_weights(one.model, other.model)
    assert not same_weights(one.model, load_model(ModelRequest(sample=SAMPLES[name], seed=4)).model)
    assert sum(p.numel() for p in one.model.parameters()) < 10_000_000
    assert one.notes == ()


def test_the_llama3_sample_is_a_llama3():
    config = load_model(ModelRequest(sample=SAMPLES["llama3"])).config
    assert config.rope_parameters["rope_type"] == "llama3"
    assert (config.rms_norm_eps, config.vocab_size, config.hidden_size) == (1e-5, 1024, 256)
    assert (config.num_hidden_layers, config.tie_word_embeddings) == (4, False)
    assert config.num_key_value_heads < config.num_attention_heads


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_one_config_serves_several_architectures(architecture):
    sample = dataclasses.replace(SAMPLES["bert"], architecture=architecture)
    assert type(load_model(ModelRequest(sample=sample)).model).__name__ == architecture


def test_loading_leaves_the_random_state_as_it_was():
    before = torch.get_rng_state()
    load_model(ModelRequest(sample=SAMPLES["llama"]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_a_sample_is_built_in_the_requested_dtype(name):
    loaded = load_model(ModelRequest(sample=SAMPLES["llama"], dtype=name))
    assert {str(p.dtype) for p in loaded.model.parameters()} == {f"torch.{name}"}
    assert loaded.source["dtype"] == name
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_rebuilt_from_its_source_after_json(name):
    loaded = load_model(ModelRequest(sample=SAMPLES[name], dtype="bf16", seed=5))
    again = rebuild_model(json.loads(json.dumps(loaded.source)))
    assert (again.source, again.fingerprint, again.task) == (loaded.source, loaded.fingerprint, loaded.task)
    assert same_weights(again.model, loaded.model)


def test_a_sample_of_an_unknown_class_suggests_the_nearest():
    with pytest.raises(UnknownArchitecture) as raised:
        load_model(ModelRequest(sample=SampleModel("LlamaForCasualLM", {})))
    assert "LlamaForCausalLM" in raised.value.fix


@pytest.mark.parametrize("request_", [ModelRequest(), ModelRequest(model="x", sample=SAMPLES["llama"])])
def test_a_request_names_exactly_one_model(request_):
    with pytest.raises(BadOption):
        load_model(request_)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_folder_gives_what_was_saved_there(saved, name):
    made = load_model(ModelRequest(sample=SAMPLES[name]))
    loaded = load_model(ModelRequest(model=str(saved(name))))
    assert (loaded.task, loaded.notes, loaded.fingerprint) == (made.task, (), made.fingerprint)
    assert same_weights(loaded.model, made.model)
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_a_sharded_folder_gives_the_same_as_a_whole_one(folder, sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 1
    one, other = (load_model(ModelRequest(model=str(path))).model for path in (folder, sharded))
    assert same_weights(one, other)


def test_a_folder_is_rebuilt_from_its_source_from_anywhere(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    loaded = load_model(ModelRequest(model=folder.name, dtype="float64"))
    monkeypatch.chdir("/")
    assert loaded.source["path"] == str(folder)
    assert same_weights(rebuild_model(loaded.source).model, loaded.model)


@pytest.mark.parametrize(("asked", "given"), [(None, torch.bfloat16), ("float32", torch.float32)])
def test_without_a_dtype_the_checkpoint_s_own_is_kept(tmp_path, asked, given):
    load_model(ModelRequest(sample=SAMPLES["llama"], dtype="bfloat16")).model.save_pretrained(tmp_path)
    assert load_model(ModelRequest(model=str(tmp_path), dtype=asked)).model.dtype is given


def test_random_weights_need_a_config_alone(saved, tmp_path):
    shutil.copy(saved("llama") / "config.json", tmp_path)
    request = ModelRequest(model=str(tmp_path), random_weights=True, seed=11)
    loaded = load_model(request)
    assert same_weights(loaded.model, load_model(ModelRequest(sample=SAMPLES["llama"], seed=11)).model)
    assert same_weights(loaded.model, rebuild_model(loaded.source).model)


def test_a_fresh_head_is_noted_and_seeded(saved):
    head = ("bert.pooler", "class*")
    request = ModelRequest(model=str(saved("bert")), task="sequence-classification", seed=2, allow_random_weights=head)
    loaded = load_model(request)
    assert type(loaded.model).__name__ == "BertForSequenceClassification"
    new, unused = loaded.notes
    assert loaded.caveats == loaded.notes
    assert new.endswith("not in the checkpoint, so initialized at random: bert.pooler.dense, classifier")
    assert "cls.predictions" in unused
    assert "not used by BertForSequenceClassification" in unused
    assert same_weights(loaded.model, load_model(request).model)
    assert same_weights(loaded.model, rebuild_model(loaded.source).model)
    assert not same_weights(loaded.model, load_model(dataclasses.replace(request, seed=3)).model)


def test_a_base_model_leaves_the_head_out_and_says_so(saved):
    loaded = load_model(ModelRequest(model=str(saved("llama")), task="feature-extraction"))
    assert type(loaded.model).__name__ == "LlamaModel"
    assert loaded.notes == ("1 weight of the checkpoint not used by LlamaModel: lm_head",)


def test_the_head_of_an_encoder_decoder_is_a_head(saved):
    request = ModelRequest(model=str(saved("t5")), task="sequence-classification")
    with pytest.raises(BadModelFolder, match="lacks 4 weights of T5ForSequenceClassification") as refused:
        load_model(request)
    assert "--allow-random-weights classification_head.dense" in refused.value.fix
    loaded = load_model(dataclasses.replace(request, allow_random_weights=("classification_head",)))
    assert "classification_head" in loaded.notes[0]


def test_loading_prints_nothing_and_puts_the_settings_back(saved, capfd):
    folder = saved("bert")
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    capfd.readouterr()
    try:
        load_model(ModelRequest(model=str(folder), task="feature-extraction", allow_random_weights=("pooler",)))
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == standard_logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()


def test_warnings_for_users_become_notes_and_others_are_dropped():
    with quiet_transformers() as warned:
        warnings.warn("first line\nsecond line", UserWarning, stacklevel=1)
        warnings.warn("first line\nanother line", UserWarning, stacklevel=1)
        warnings.warn("for developers", DeprecationWarning, stacklevel=1)
    assert messages_for_users(warned) == ("first line",)


def test_an_error_puts_the_settings_back_too(tmp_path):
    verbosity = transformers.utils.logging.get_verbosity()
    with pytest.raises(ModelNotFound):
        load_model(ModelRequest(model=str(tmp_path / "nothing")))
    assert transformers.utils.logging.get_verbosity() == verbosity
