"""Ranges of the height and width of images: one artifact for all sizes, if the model accepts several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.vit.modeling_vit import ViTForImageClassification

from tests.pipeline.conftest import quick
from tests.pipeline.test_cache_ranges import Eager
from thunder_core.foundation.errors import BadOption, BadSymbolicArgument, WrongInputs
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.loading import load
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.pipeline import Request, optimize, plan
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.validate import validate_artifact

RESNET = SampleModel(
    "ResNetForImageClassification",
    {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 4},
)


def of_resnet(out: Path, **changes: Any) -> Request:
    """A quick request for a small convolution model whose config has no image size."""
    settings = {"runs": 2, "warmup": 0, "inputs": 1, "validate": True, "benchmark": False}
    return Request(recipe=Eager, model=ModelRequest(sample=RESNET), out=out, **{**settings, **changes})


def test_a_convolution_model_serves_images_of_all_sizes(tmp_path: Path) -> None:
    out = tmp_path / "a"
    done = optimize(of_resnet(out, height=40, width=40, dynamic={"height": (32, 64), "width": (24, 48)}))
    assert done.report.validation is not None
    sizes = [point.size for point in done.report.validation.sizes]
    assert sizes[0] == "1 x 40 x 40 pixels" and {"1 x 32 x 48 pixels", "1 x 64 x 24 pixels"} < set(sizes)
    manifest = open_artifact(out).manifest
    assert manifest.random_inputs == {"batch": 1, "seq": 128, "height": 40, "width": 40, "seed": 0}
    assert len(manifest.programs) <= 3
    loaded = load(out, strict=True)
    with torch.no_grad():
        assert loaded(pixel_values=torch.randn(1, 3, 57, 31)).logits.shape == (1, 4)
        with pytest.raises(WrongInputs, match="which serves height 32 to 64, width 24 to 48, accepts these inputs"):
            loaded(pixel_values=torch.randn(1, 3, 57, 49))
    points = validate_artifact(out, ValidateRequest(inputs=1, write=False, seed=3)).validation.sizes
    assert [point.size for point in points] == sizes


def test_a_vision_transformer_interpolates_its_positions(tmp_path: Path) -> None:
    out = tmp_path / "a"
    done = optimize(quick(out, Eager, "vit", dynamic={"height": (16, 64)}, benchmark=False, inputs=1))
    assert done.report.validation is not None and done.report.validation.passed
    assert len(open_artifact(out).manifest.programs) <= 3
    model = load(out, strict=True)
    with torch.no_grad():
        for height in (17, 33, 63):
            pixels = torch.randn(1, 3, height, 32)
            expected = done.compiled._thunder.subject(pixel_values=pixels, interpolate_pos_encoding=True).logits
            torch.testing.assert_close(model(pixel_values=pixels, interpolate_pos_encoding=True).logits, expected)


def test_a_model_that_accepts_a_single_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ViTForImageClassification.forward

    def rigid(self: Any, pixel_values: Any = None) -> Any:
        return forward(self, pixel_values)

    monkeypatch.setattr(ViTForImageClassification, "forward", rigid)
    told = r"this ViTForImageClassification does not accept images of {} pixels: Input image size .* doesn't match"
    with pytest.raises(BadOption, match=told.format("16 x 32")):
        optimize(quick(tmp_path / "a", Eager, "vit", dynamic={"height": (16, 64)}))
    with pytest.raises(BadOption, match=told.format("40 x 40")):
        optimize(quick(tmp_path / "a", Eager, "vit", height=40, width=40))
    assert not (tmp_path / "a").exists()


def test_a_size_that_is_too_small_for_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="does not accept images of 1 x 32 pixels"):
        optimize(quick(tmp_path / "a", Eager, "vit", dynamic={"height": (1, 64)}))


def test_texts_have_no_height(tmp_path: Path) -> None:
    for changes in ({"dynamic": {"height": (16, 64)}}, {"width": 16}):
        with pytest.raises((BadOption, BadSymbolicArgument), match="LlamaForCausalLM reads no images"):
            optimize(quick(tmp_path / "a", Eager, **changes))


def test_images_are_traced_at_the_size_of_the_config_within_the_range(tmp_path: Path) -> None:
    assert plan(quick(tmp_path / "a", sample="vit", dynamic={"height": (40, 64)})).size == InputSize(1, 128, None, 40)
    planned = plan(quick(tmp_path / "a", sample="vit", height=48))
    assert ("inputs", "batch 1, 48 x 32 pixels, seed 0") in planned.rows()
