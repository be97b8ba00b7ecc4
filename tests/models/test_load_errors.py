"""Models that cannot be loaded: one clear error for each cause, with its code and status, before any heavy work."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from thunder_core.foundation.errors import (
    BadModelFolder,
    BadOption,
    ModelNotFound,
    OutOfMemory,
    PackageMissing,
    RemoteCodeRefused,
    UnknownArchitecture,
    UnknownName,
)
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files
from thunder_core.workflow.models.loading import load
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES

INDEX = "model.safetensors.index.json"


def heavy(*_args, **_kwargs):
    """Stand where weights are read or a model is built."""
    pytest.fail("something heavy was done before the checks")


def refusal(model, kind, *, early=True, **options):
    """The error of loading: exactly of that class, in one line, with a fix, and before the heavy work."""
    with pytest.raises(kind) as raised, pytest.MonkeyPatch.context() as patch:
        if early:
            patch.setattr(load, "read_model", heavy)
            patch.setattr(load, "build_random", heavy)
        load_model(ModelRequest(model=str(model), **options))
    assert type(raised.value) is kind
    assert raised.value.fix
    assert "\n" not in raised.value.what
    return raised.value


def edit_config(folder, **changes):
    """Set entries of a folder's config; None takes one out."""
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def truncate(path, size):
    """Cut a file to a size."""
    path.write_bytes(path.read_bytes()[:size])


# ---- the folder -------------------------------------------------------------------------------------------------


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


# ---- the config -------------------------------------------------------------------------------------------------


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


# ---- code of the model's own --------------------------------------------------------------------------------------

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


def header(text: bytes, length: int | None = None) -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text


HEADERS = {
    "lists": header(b"[" * 100_000),
    "a number of many digits": header(b'{"x": ' + b"9" * 5001 + b"}"),
    "an end of many digits": header(b'{"x": {"data_offsets": [0, ' + b"9" * 4300 + b"]}}"),
    "a list": header(b"[]"),
    "a header of 1 GB": header(b"{", length=1 << 30) + bytes(100),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_of_tensors_that_chokes_who_reads_it(folder, kind):
    (folder / "model.safetensors").write_bytes(HEADERS[kind])
    assert len(refusal(folder, BadModelFolder).what) < 1_000


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


# ---- the weights ------------------------------------------------------------------------------------------------


def test_no_weights_suggest_random_ones(folder):
    (folder / "model.safetensors").unlink()
    error = refusal(folder, BadModelFolder)
    assert "has no weights" in error.what
    assert "--random-weights" in error.fix


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refusal(folder, BadModelFolder)
    assert "pickled" in error.what
    assert "save_pretrained" in error.fix


def test_an_adapter_is_no_model(folder):
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(folder, BadModelFolder).what


def test_a_distributed_checkpoint_is_not_unpickled(folder):
    (folder / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"")
    assert "distributed checkpoint" in refusal(folder, BadModelFolder).what


@pytest.mark.parametrize("kept", [0.99, 0.5])
def test_a_truncated_file_is_named_with_its_byte_counts(folder, kept):
    path = folder / "model.safetensors"
    size = path.stat().st_size
    truncate(path, int(size * kept))
    error = refusal(folder, BadModelFolder)
    assert f"{path} is truncated: it has {int(size * kept)} bytes of {size}" in error.what
    assert (error.code, error.status) == ("TH0205", 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes"),
        (b"\x01\x02", "it has 2 bytes"),
        (b"\xff" * 64, "is truncated or not a safetensors file"),
        ((16).to_bytes(8, "little") + b"not json at all!" + b"\0" * 64, "its header is not JSON"),
        ((2).to_bytes(8, "little") + b"{}" + b"\0" * 64, "is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer"),
    ],
)
def test_a_file_with_a_garbage_header(folder, content, said):
    (folder / "model.safetensors").write_bytes(content)
    error = refusal(folder, BadModelFolder)
    assert said in error.what
    assert "model.safetensors" in error.what


def test_a_truncated_shard_is_named(sharded):
    shard = max(sharded.glob("*.safetensors"))
    truncate(shard, shard.stat().st_size - 1)
    assert f"{shard} is truncated" in refusal(sharded, BadModelFolder).what


def test_a_missing_shard_of_a_diffusion_model_is_named_with_its_own_index(sharded):
    (sharded / INDEX).rename(sharded / f"diffusion_pytorch_{INDEX}")
    shard = min(sharded.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(BadModelFolder, match=f"shards in diffusion_pytorch_{INDEX}: {shard.name}"):
        checkpoint_files(sharded)


def test_a_missing_shard_is_named(sharded):
    shard = min(sharded.glob("*.safetensors"))
    shard.unlink()
    error = refusal(sharded, BadModelFolder)
    assert shard.name in error.what
    assert "lacks 1 of the" in error.what


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "not a file in the same folder"),
        ('{"weight_map": {"a": 1}}', "not a file in the same folder"),
    ],
)
def test_a_damaged_index(sharded, content, said):
    (sharded / INDEX).write_text(content)
    error = refusal(sharded, BadModelFolder)
    assert said in error.what
    assert INDEX in error.what


def test_an_index_of_other_shards(sharded):
    index = json.loads((sharded / INDEX).read_text())
    first = min(index["weight_map"].values())
    index["weight_map"]["model.layers.99.weight"] = first
    (sharded / INDEX).write_text(json.dumps(index))
    error = refusal(sharded, BadModelFolder)
    assert "model.layers.99.weight" in error.what
    assert first in error.what


def test_weights_of_another_shape_than_the_config_s(folder):
    edit_config(folder, intermediate_size=96)
    error = refusal(folder, BadModelFolder, early=False)
    assert "mlp.down_proj.weight is 64x128" in error.what
    assert "takes 64x96" in error.what


def test_missing_weights_are_no_fresh_head(folder):
    edit_config(folder, num_hidden_layers=3)
    error = refusal(folder, BadModelFolder, early=False)
    assert "lacks 9 weights of LlamaForCausalLM: model.layers.2" in error.what


@pytest.mark.parametrize("task", ["sequence-classification", "feature-extraction"])
def test_a_missing_layer_is_no_fresh_head_under_another_task(folder, task):
    edit_config(folder, num_hidden_layers=3)
    assert "lacks 9 weights" in refusal(folder, BadModelFolder, early=False, task=task).what


def test_a_missing_layer_of_an_encoder_decoder_is_no_fresh_head(saved, tmp_path):
    folder = Path(shutil.copytree(saved("t5"), tmp_path / "t5"))
    edit_config(folder, num_decoder_layers=3)
    assert "decoder.block.2" in refusal(folder, BadModelFolder, early=False, task="sequence-classification").what


def test_the_checkpoints_own_head_may_not_be_missing(saved, tmp_path):
    folder = Path(shutil.copytree(saved("bert"), tmp_path / "bert"))
    edit_config(folder, architectures=["BertForSequenceClassification"])
    assert (
        "lacks 4 weights of BertForSequenceClassification: bert.pooler.dense, classifier"
        in refusal(folder, BadModelFolder, early=False).what
    )


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
