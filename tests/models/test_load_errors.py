"""Folders and configs that cannot be loaded are refused with the reason and a remedy."""

from __future__ import annotations

import os

import pytest
import torch
import transformers

from tests.models.refusals import INDEX, edit_config, refusal
from thunder_core.foundation.errors import (
    BadModelFolder,
    BadOption,
    ModelNotFound,
    OutOfMemory,
    PackageMissing,
    UnknownArchitecture,
    UnknownName,
)
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such", "./nothing", "~/nothing", "a/b/", "..", "a//b"])
def test_no_such_folder(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    if name == "..":
        error = refusal(name, BadModelFolder)
        assert "has no config.json" in error.what
        return
    error = refusal(name, ModelNotFound)
    assert name in error.what
    assert (error.code, error.status) == ("TH0204", 2)


def test_a_file_is_no_folder(folder):
    error = refusal(folder / "model.safetensors", ModelNotFound)
    assert "is a file" in error.what
    assert str(folder) in error.fix


def test_an_empty_folder(tmp_path):
    error = refusal(tmp_path, BadModelFolder)
    assert "has no config.json" in error.what
    assert (error.code, error.status) == ("TH0205", 2)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="permissions are POSIX's")
@pytest.mark.parametrize("locked", ["", ".."])
def test_an_unreadable_folder(folder, locked):
    place = (folder / locked).resolve()
    place.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        error = refusal(folder, ModelNotFound)
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o755)
    assert "cannot be read: permission denied" in error.what


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("\N{BULLET}", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"vocab_size": 1}', "has no model_type"),
    ],
)
def test_a_config_that_is_none(folder, content, said):
    (folder / "config.json").write_text(content)
    error = refusal(folder, BadModelFolder)
    assert said in error.what
    assert str(folder / "config.json") in error.what


def test_a_config_of_bytes_that_are_no_text(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "is not JSON" in refusal(folder, BadModelFolder).what


def test_a_config_that_its_family_does_not_take(folder):
    edit_config(folder, vocab_size="many")
    error = refusal(folder, BadModelFolder)
    assert "is not a valid config" in error.what
    assert "vocab_size" in error.what


def test_an_unknown_family_names_the_version_and_the_nearest(folder):
    edit_config(folder, model_type="lama", architectures=None)
    error = refusal(folder, UnknownArchitecture)
    assert "'lama'" in error.what
    assert transformers.__version__ in error.what
    assert "llama" in error.fix
    assert (error.code, error.status) == ("TH0801", 8)


def test_an_unknown_class_names_the_nearest(folder):
    edit_config(folder, architectures=["LlamaForCasualLM"])
    error = refusal(folder, UnknownArchitecture)
    assert "LlamaForCausalLM" in error.fix
    assert "--task" in error.fix


def test_an_unknown_class_is_no_obstacle_where_the_task_is_said(folder):
    edit_config(folder, architectures=["LlamaForCasualLM"])
    assert load_model(ModelRequest(model=str(folder), task="causal-lm")).notes == ()


def test_a_task_that_the_family_does_not_have(folder):
    error = refusal(folder, BadOption, task="image-classification")
    assert "'llama' for the task 'image-classification'" in error.what


@pytest.mark.parametrize(
    ("options", "nearest"),
    [({"dtype": "bfloat61"}, "bfloat16"), ({"device": "cudda"}, "cuda"), ({"task": "casual-lm"}, "causal-lm")],
)
def test_unknown_names_are_found_before_the_folder_is_looked_at(options, nearest):
    error = refusal("/no/such/folder", UnknownName, **options)
    assert nearest in error.fix
    assert (error.code, error.status) == ("TH0202", 2)


CHOKING = {
    "lists": b'{"a": ' + b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "a number of many digits": b'{"hidden_size": ' + b"9" * 5001 + b"}",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", CHOKING)
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_json_that_chokes_who_reads_it(folder, kind, name):
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(CHOKING[kind])
    assert "is not JSON" in refusal(folder, BadModelFolder).what


def test_a_number_that_no_size_can_be(folder):
    edit_config(folder, hidden_size=int("9" * 4000))
    refusal(folder, BadModelFolder, early=False, random_weights=True)


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refusal(folder, BadModelFolder)


@pytest.mark.parametrize("options", [{}, {"random_weights": True}])
def test_a_config_that_no_model_can_be_built_from(folder, options):
    edit_config(folder, num_attention_heads=0)
    error = refusal(folder, BadModelFolder, early=False, **options)
    assert str(folder) in error.what


def test_a_sample_whose_config_is_wrong_names_the_sample():
    with pytest.raises(BadModelFolder, match="the sample LlamaForCausalLM"):
        load_model(ModelRequest(sample=SampleModel("LlamaForCausalLM", {**SAMPLES["llama"].config, "vocab_size": "x"})))


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (torch.OutOfMemoryError("2 GiB wanted"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (ImportError("needs timm"), PackageMissing),
        (RuntimeError("a\nb\nc"), BadModelFolder),
        (KeyError("rope"), BadModelFolder),
    ],
)
def test_an_error_of_loading_is_reported_in_one_line(raised, kind):
    with pytest.raises(kind) as told, loading_errors("here", "is bad"):
        raise raised
    assert "here" in told.value.what
    assert "\n" not in told.value.what


def test_a_key_pressed_is_no_bad_folder():
    with pytest.raises(KeyboardInterrupt), loading_errors("here", "is bad"):
        raise KeyboardInterrupt
