"""Models of diffusers: folders equal `from_pretrained` of their class, and bad folders are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.diffusion_models import MODELS, conditional_unet, dit, unet
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import (
    BadModelFolder,
    BadOption,
    NoExampleInputs,
    NoLoss,
    PackageMissing,
    UnknownArchitecture,
)
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest


@pytest.fixture
def diffusers() -> Any:
    return pytest.importorskip("diffusers", reason="needs the package diffusers")


@pytest.mark.parametrize("name", MODELS)
def test_model_of_a_folder_equals_that_of_diffusers(diffusers, name, tmp_path):
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path)
    loaded = load_model(ModelRequest(model=str(tmp_path)))
    inputs = example_inputs(loaded, batch=2, seq=5, seed=0)
    assert type(loaded.model) is type(theirs)
    assert rebuild_model(loaded.source).fingerprint == loaded.fingerprint
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**inputs).sample, theirs(**inputs).sample)


def test_denoiser_of_a_pipeline_is_its_model_with_a_note(diffusers, tmp_path):
    conditional_unet().save_pretrained(tmp_path / "unet")
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    loaded = load_model(ModelRequest(model=str(tmp_path)))
    assert type(loaded.model).__name__ == "UNet2DConditionModel"
    assert any("unet of the pipeline" in note for note in loaded.notes)
    assert type(rebuild_model(loaded.source).model).__name__ == "UNet2DConditionModel"


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_random_weights_are_the_same_for_a_seed(diffusers, tmp_path, dtype):
    dit().save_config(tmp_path)
    request = ModelRequest(model=str(tmp_path), random_weights=True, seed=3, dtype=dtype)
    one, other = load_model(request).model, load_model(request).model
    assert one.dtype is getattr(torch, dtype or "float32")
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


DENOISERS = [name for name in MODELS if not name.endswith(("autoencoder", "quantizer"))]


@pytest.mark.parametrize("name", DENOISERS)
def test_step_of_training_has_the_loss_of_diffusers_examples(diffusers, name, tmp_path):
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path)
    loaded = load_model(ModelRequest(model=str(tmp_path), train=True))
    inputs = example_inputs(loaded, batch=2, seq=5, seed=0, labels=True)
    target = inputs.pop("target")
    sample = theirs(**inputs).sample
    prediction = sample.chunk(2, dim=1)[0] if sample.shape != target.shape else sample
    output = loaded.model(target=target, **inputs)
    torch.testing.assert_close(output.loss, torch.nn.functional.mse_loss(prediction.float(), target.float()))
    torch.testing.assert_close(output.sample, sample)
    assert loaded.config.architectures == [type(theirs).__name__]
    again = rebuild_model(loaded.source, train=True)
    assert again.fingerprint == loaded.fingerprint
    assert type(again.model.denoiser) is type(theirs)


def test_autoencoder_is_not_trained_from_the_command_line(diffusers, tmp_path):
    MODELS["autoencoder"]().save_pretrained(tmp_path)
    config = load_model(ModelRequest(model=str(tmp_path))).config
    with pytest.raises(NoLoss, match="AutoencoderKL") as caught:
        kind_of(config).require_loss("diffusion", config, 1)
    assert "thunder_core.jit" in caught.value.fix


def test_further_conditions_have_no_example_inputs(diffusers, tmp_path):
    conditional_unet(encoder_hid_dim=16, encoder_hid_dim_type="text_proj").save_pretrained(tmp_path)
    with pytest.raises(NoExampleInputs, match="encoder_hid_dim_type"):
        example_inputs(load_model(ModelRequest(model=str(tmp_path))), batch=1, seq=5, seed=0)


def test_damaged_folders_are_refused(diffusers, tmp_path):
    unet().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "layers_per_block": 2}))
    with pytest.raises(BadModelFolder, match="4 weights whose shape does not fit the config"):
        load_model(ModelRequest(model=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({**config, "_class_name": "UNet9DModel"}))
    with pytest.raises(UnknownArchitecture, match="UNet9DModel"):
        load_model(ModelRequest(model=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadOption, match="causal-lm"):
        load_model(ModelRequest(model=str(tmp_path), task="causal-lm"))
    (tmp_path / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(BadModelFolder, match="no weights"):
        load_model(ModelRequest(model=str(tmp_path)))


def test_pipeline_without_a_denoiser_is_refused(tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "VaePipeline"}')
    with pytest.raises(BadModelFolder, match="VaePipeline"):
        load_model(ModelRequest(model=str(tmp_path)))


def test_missing_diffusers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "UNet2DModel", "_diffusers_version": "0.30"}')
    installed = plugins.is_installed
    monkeypatch.setattr(plugins, "is_installed", lambda name: name != "diffusers" and installed(name))
    with pytest.raises(PackageMissing, match="needs the package diffusers"):
        load_model(ModelRequest(model=str(tmp_path)))


@pytest.mark.parametrize("raised", ["RuntimeError('two of one')", "ModuleNotFoundError('no module')", "KeyError('v')"])
def test_library_that_cannot_be_imported_is_named(raised: str, tmp_path: Path) -> None:
    """diffusers raises more than ImportError on import, if other packages have unexpected versions."""
    (tmp_path / "diffusers.py").write_text(f"raise {raised}\n")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"_class_name": "UNet2DModel", "_diffusers_version": "0.30"}')
    script = (
        "from thunder_core.workflow.models.loading.load import load_model\n"
        "from thunder_core.workflow.models.request.request import ModelRequest\n"
        f"load_model(ModelRequest(model={str(model)!r}))\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    error = ran.stderr.decode()
    assert "PackageMissing" in error
    assert f"needs the package diffusers, and importing it raises {raised.partition('(')[0]}: " in error


def change_weights(folder, change):
    """Write the weights of a folder again, after a change of their dictionary."""
    from safetensors.torch import load_file, save_file

    file = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def test_missing_weights_are_refused_unless_they_may_be_random(diffusers, tmp_path):
    unet().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda weights: weights.pop("conv_out.weight"))
    with pytest.raises(BadModelFolder, match="lacks 1 weight of UNet2DModel: conv_out"):
        load_model(ModelRequest(model=str(tmp_path)))
    request = ModelRequest(model=str(tmp_path), allow_random_weights=("conv_out",), seed=3)
    loaded = load_model(request)
    assert ["conv_out" in caveat and "initialized at random" in caveat for caveat in loaded.caveats] == [True]
    assert torch.equal(loaded.model.conv_out.weight, rebuild_model(loaded.source).model.conv_out.weight)


def test_unused_weights_are_refused_unless_they_may_be_left_out(diffusers, tmp_path):
    unet().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda weights: weights.update(extra=torch.zeros(2)))
    with pytest.raises(BadModelFolder, match="holds 1 weight that UNet2DModel does not use: extra"):
        load_model(ModelRequest(model=str(tmp_path)))
    loaded = load_model(ModelRequest(model=str(tmp_path), allow_unused_weights=("extra",)))
    assert ["extra" in caveat for caveat in loaded.caveats] == [True]


def test_weights_of_other_shapes_are_refused(diffusers, tmp_path):
    unet().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({"conv_in.bias": torch.zeros(3)}))
    with pytest.raises(BadModelFolder, match=r"conv_in\.bias is 3, but UNet2DModel takes 32"):
        load_model(ModelRequest(model=str(tmp_path), allow_random_weights=("*",), allow_unused_weights=("*",)))
