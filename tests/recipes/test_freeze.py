"""The recipe `freeze` on convolutional networks: every line and every executor passes validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize
from thunder_executors.prepacked_convolution import PrepackedConvolution

RESNET = {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16, "layer_type": "basic"}
EFFICIENTNET = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320}
NETWORKS = {
    "resnet": lambda: ResNetForImageClassification(ResNetConfig(**RESNET)),
    "mobilenet_v2": lambda: MobileNetV2ForImageClassification(MobileNetV2Config(depth_multiplier=0.25, image_size=32)),
    "efficientnet": lambda: EfficientNetForImageClassification(EfficientNetConfig(**EFFICIENTNET, image_size=32)),
}


@pytest.mark.skipif(not PrepackedConvolution().runs("direct"), reason="it needs AVX2 and a C++ compiler")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_passes_validation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_TUNE", "60s")
    torch.manual_seed(0)
    network = NETWORKS[name]().eval()
    for parameter in network.parameters():  # transformers' own weights of this network give zeros
        torch.nn.init.normal_(parameter, std=0.2)
    network.save_pretrained(tmp_path / "model")
    model = ModelRequest(str(tmp_path / "model"), device="cpu")
    outcome = optimize(Request("freeze", model=model, out=tmp_path / "out", inputs=1, benchmark=False))
    assert outcome.report.validation is not None
    assert outcome.report.validation.passed
    executors = {choice.executor for choice in outcome.report.choices}
    assert "prepacked-convolution" in executors
