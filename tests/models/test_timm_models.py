"""Models of timm: folders and architectures equal `timm.create_model`, and bad names are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, BadOption, NoLoss, PackageMissing, UnknownArchitecture
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest

ARCHITECTURES = ("resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto")


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm", reason="needs the package timm")


@pytest.fixture
def without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = plugins.is_installed
    monkeypatch.setattr(plugins, "is_installed", lambda name: name != "timm" and installed(name))


def written(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_folder_of_timm_is_the_model_of_timm(timm, name, tmp_path):
    theirs = timm.create_model(name, num_classes=7).eval()
    timm.models.save_for_hf(theirs, tmp_path / name, safe_serialization=True)
    loaded = load_model(ModelRequest(model=str(tmp_path / name)))
    inputs = example_inputs(loaded, batch=1, seq=1, seed=0)
    assert inputs["pixel_values"].shape == (1, *theirs.pretrained_cfg["input_size"])
    assert (loaded.task, loaded.config.num_labels) == ("image-classification", 7)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**inputs).logits, theirs(inputs["pixel_values"]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_has_random_weights_of_the_seed(timm, name):
    loaded = load_model(ModelRequest(model=f"timm:{name}", random_weights=True, seed=3))
    again = rebuild_model(loaded.source)
    assert again.fingerprint == loaded.fingerprint
    assert all(torch.equal(*pair) for pair in zip(again.model.parameters(), loaded.model.parameters(), strict=True))
    names = set(timm.create_model(name).state_dict())
    assert {key.removeprefix("timm_model.") for key in loaded.model.state_dict()} == names


def test_step_of_training_has_the_loss_of_classes(timm):
    loaded = load_model(ModelRequest(model="timm:resnet10t", random_weights=True, train=True))
    kind_of(loaded.config).require_loss(loaded.task, loaded.config, 1)
    inputs = example_inputs(loaded, batch=2, seq=1, seed=0, height=64, width=64, labels=True)
    output = loaded.model.train()(**inputs)
    expected = torch.nn.functional.cross_entropy(output.logits, inputs["labels"])
    torch.testing.assert_close(output.loss, expected)


def test_model_without_classes_is_not_trained(timm, tmp_path):
    theirs = timm.create_model("resnet10t", num_classes=0)
    timm.models.save_for_hf(theirs, tmp_path / "features", safe_serialization=True)
    loaded = load_model(ModelRequest(model=str(tmp_path / "features")))
    with pytest.raises(NoLoss, match="no classes") as caught:
        kind_of(loaded.config).require_loss(loaded.task, loaded.config, 1)
    assert "num_classes" in caught.value.fix


def test_channels_match_the_model(timm, tmp_path):
    theirs = timm.create_model("resnet10t", num_classes=0, in_chans=1).eval()
    timm.models.save_for_hf(theirs, tmp_path / "gray", model_args={"in_chans": 1}, safe_serialization=True)
    loaded = load_model(ModelRequest(model=str(tmp_path / "gray")))
    inputs = example_inputs(loaded, batch=1, seq=1, seed=0, height=32, width=32)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**inputs).pooler_output, theirs(inputs["pixel_values"]))


def test_architecture_alone_is_a_config(timm, tmp_path):
    folder = written(tmp_path / "model", architecture="resnet10t", num_classes=5)
    model = load_model(ModelRequest(model=str(folder), random_weights=True)).model
    with torch.no_grad():
        assert model(pixel_values=torch.zeros(1, 3, 32, 32)).logits.shape == (1, 5)


def test_unknown_architecture_is_refused_with_a_similar_name(timm, tmp_path):
    folder = written(tmp_path / "model", architecture="resnet188", num_classes=5)
    for request in (ModelRequest(model=str(folder)), ModelRequest(model="timm:resnet188", random_weights=True)):
        with pytest.raises(UnknownArchitecture, match="resnet188") as caught:
            load_model(request)
        assert "resnet18" in caught.value.fix


def test_folder_without_weights_is_refused(timm, tmp_path):
    with pytest.raises(BadModelFolder, match="no weights"):
        load_model(ModelRequest(model=str(written(tmp_path / "model", architecture="resnet10t", num_classes=5))))


@pytest.mark.usefixtures("without_timm")
def test_missing_timm_is_named(tmp_path):
    folder = written(tmp_path / "model", architecture="resnet18", num_classes=5, pretrained_cfg={})
    for request in (ModelRequest(model=str(folder)), ModelRequest(model="timm:resnet18", random_weights=True)):
        with pytest.raises(PackageMissing, match="needs the package timm"):
            load_model(request)


def test_architecture_without_random_weights_is_refused():
    with pytest.raises(BadOption, match="timm:resnet18"):
        load_model(ModelRequest(model="timm:resnet18"))
