"""A config of a million layers is refused before one of them is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.models.loading import depth
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "depth", "num_blocks")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_a_depth_is_known(name: str) -> None:
    assert list(depth.depths({name: 12, "hidden_size": 10**9, "text_config": {name: 24}})) == [12, 24]
    assert list(depth.depths({"depths": [2, 2, 6, 2], "layer_types": ["full"] * 99, name: True})) == [12, 1]


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "random"])
@pytest.mark.parametrize("layers", [1_000_000, 10**30])
def test_too_many_layers_are_refused_before_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int, weights: bool
) -> None:
    load_model(ModelRequest(sample=SAMPLES["llama"])).model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    monkeypatch.setattr(depth, "free_memory", lambda device: 64 << 30)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("it lists its layers"))
    with pytest.raises(
        OutOfMemory, match=f"describes {layers:,} layers, whose modules and traces alone need"
    ) as caught:
        load_model(ModelRequest(str(tmp_path), random_weights=not weights))
    assert caught.value.status == 7


def test_as_many_layers_as_there_is_room_for_are_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "free_memory", lambda device: 10 * depth.LAYER_BYTES)
    depth.require_depth(Path("config.json"), {"num_hidden_layers": 10})
    with pytest.raises(OutOfMemory):
        depth.require_depth(Path("config.json"), {"num_hidden_layers": 11})
    monkeypatch.setattr(depth, "free_memory", lambda device: None)
    depth.require_depth(Path("config.json"), {"num_hidden_layers": 10**9})


def test_a_vocabulary_too_large_for_any_machine_is_out_of_memory(tmp_path: Path) -> None:
    load_model(ModelRequest(sample=SAMPLES["llama"])).model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 1 << 44}))
    with pytest.raises(OutOfMemory, match="does not fit into memory"):
        load_model(ModelRequest(str(tmp_path), random_weights=True))
