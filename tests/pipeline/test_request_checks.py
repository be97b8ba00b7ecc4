"""Checks of a hub model against the local cache: config and weights, in the layout of the hub's client."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants

from thunder_core.foundation.errors import BadModelFolder, ModelNotFound
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.request_checks import asks_the_hub, require_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
WHOLE = struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)
SHARDS = tuple(f"model-0000{number}-of-00005.safetensors" for number in range(1, 6))
INDEX = json.dumps({"weight_map": {"w": SHARDS[0], **{f"w{shard}": shard for shard in SHARDS[1:]}}}).encode()
CONFIG = {"config.json": b'{"model_type": "llama"}'}
INDEXED = {**CONFIG, "model.safetensors.index.json": INDEX}
SINGLE = {**CONFIG, "model.safetensors": WHOLE}
MODEL = ModelRequest(model="acme/tiny")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def put(cache: Path, files: Mapping[str, bytes], absent: tuple[str, ...] = ()) -> None:
    """Add files of a model to the cache: blobs, links to them, and files that the hub is known not to have."""
    model = cache / "models--acme--tiny"
    for folder in ("refs", "blobs", f"snapshots/{COMMIT}", f".no_exist/{COMMIT}"):
        (model / folder).mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(COMMIT)
    for number, (name, content) in enumerate(files.items()):
        (model / "blobs" / str(number)).write_bytes(content)
        (model / "snapshots" / COMMIT / name).symlink_to(model / "blobs" / str(number))
    for name in absent:
        (model / ".no_exist" / COMMIT / name).touch()


LACKING = {
    "no weights": (CONFIG, (), "it lacks model.safetensors$"),
    "no single file": (CONFIG, ("model.safetensors",), r"it lacks model.safetensors.index.json$"),
    "pickled weights": ({**CONFIG, "pytorch_model.bin": b""}, (), r"model.safetensors \(pytorch_model.bin exists"),
    "one shard": ({**INDEXED, **dict.fromkeys(SHARDS[1:], WHOLE)}, (), f"it lacks {SHARDS[0]}$"),
    "five shards": (INDEXED, (), f"it lacks {', '.join(SHARDS[:3])} and 2 more$"),
}


@pytest.mark.parametrize("case", LACKING)
def test_weights_that_are_not_cached_are_named_offline_and_requested_online(cache, monkeypatch, case):
    files, absent, said = LACKING[case]
    put(cache, files, absent)
    with pytest.raises(ModelNotFound) as raised:
        require_model(MODEL)
    assert re.search(said, raised.value.what)
    assert "acme/tiny is incomplete in the local cache" in raised.value.what
    assert str(cache) in raised.value.what
    assert "HF_HUB_OFFLINE is set" in raised.value.what
    assert "run `hf download acme/tiny` on a machine with a network" in raised.value.fix
    require_model(ModelRequest(model="acme/tiny", random_weights=True))
    with pytest.raises(ModelNotFound, match="it lacks"):
        require_model(ModelRequest(model="acme/tiny", revision=COMMIT))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert asks_the_hub(MODEL)
    assert not asks_the_hub(ModelRequest(model="acme/tiny", random_weights=True))
    require_model(MODEL)


@pytest.mark.parametrize("offline", [True, False])
def test_a_whole_model_is_taken_from_the_cache(cache, monkeypatch, offline):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    put(cache, SINGLE)
    require_model(MODEL)
    assert not asks_the_hub(MODEL)


BAD = {
    "truncated": ({**CONFIG, "model.safetensors": WHOLE[:-4]}, (), "is truncated"),
    "a shard of another version": ({**INDEXED, **dict.fromkeys(SHARDS, WHOLE)}, (), "lacks 1 weights"),
    "a bad index": ({**CONFIG, "model.safetensors.index.json": b"{}"}, (), "has no weight_map"),
    "pickled alone": (
        {**CONFIG, "pytorch_model.bin": b""},
        ("model.safetensors", "model.safetensors.index.json"),
        "has its weights as a Python pickle",
    ),
}


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("case", BAD)
def test_bad_weights_in_the_cache_are_refused_at_once(cache, monkeypatch, case, offline):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    files, absent, said = BAD[case]
    put(cache, files, absent)
    with pytest.raises(BadModelFolder, match=said):
        require_model(MODEL)


def test_a_quantized_model_is_reported_as_quantized_and_not_as_incomplete(cache):
    put(cache, {"config.json": b'{"quantization_config": {"quant_method": "gptq"}}'})
    with pytest.raises(BadModelFolder, match=r"quantized weights \(gptq\)"):
        require_model(MODEL)


def test_a_requested_revision_is_in_the_download_command(cache):
    put(cache, CONFIG)
    (cache / "models--acme--tiny" / "refs" / "main").write_text("f" * 40)
    with pytest.raises(ModelNotFound) as raised:
        require_model(ModelRequest(model="acme/tiny", revision=COMMIT))
    assert f"hf download acme/tiny --revision {COMMIT}`" in raised.value.fix
    with pytest.raises(ModelNotFound, match="there is no folder 'acme/tiny', and the Hub model of this name is not in"):
        require_model(MODEL)
