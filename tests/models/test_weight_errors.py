"""Weights that are missing, damaged, pickled or of other shapes are refused, and never replaced by random ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.models.refusals import INDEX, edit_config, refusal
from thunder_core.foundation.errors import (
    BadModelFolder,
)
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files


def truncate(path, size):
    """Cut a file to a size."""
    path.write_bytes(path.read_bytes()[:size])


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
