"""Errors that the model also raises in eager PyTorch are the model's. Other errors pass unchanged."""

from __future__ import annotations

import pytest

from thunder_core.foundation.errors import BadOption, ModelRaises, ThunderError
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.session.model_errors import refuse_models_error

DPT = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 8, 16, 16],
    "fusion_hidden_size": 16,
}


def failing() -> None:
    raise ValueError("these images are too small")


def test_model_without_training_is_refused_with_its_own_message(tmp_path) -> None:
    sample = ModelRequest(sample=SampleModel("DPTForDepthEstimation", DPT), device="cpu")
    with pytest.raises(ModelRaises) as caught:
        optimize(Request("default", sample, out=tmp_path / "out", train=True))
    assert caught.value.what == (
        "DPTForDepthEstimation raises NotImplementedError in eager PyTorch too: Training is not implemented yet"
    )
    assert caught.value.where is not None
    assert caught.value.where.filename.endswith("modeling_dpt.py")
    assert caught.value.status == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("eager", "error"),
    [
        (lambda: None, ValueError("these images are too small")),
        (failing, ValueError("others")),
        (failing, TypeError("these images are too small")),
        (failing, BadOption("these images are too small", fix="use larger ones")),
    ],
)
def test_other_errors_pass(eager, error) -> None:
    refuse_models_error("Net", eager, error)


def test_line_is_the_models_own() -> None:
    with pytest.raises(ThunderError) as caught:
        refuse_models_error("Net", failing, ValueError("these images are too small"))
    assert caught.value.where is not None
    assert caught.value.where.function == "failing"
