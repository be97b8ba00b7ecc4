"""Tasks other than text: each architecture keeps its head, and gets labels and inputs that its forward accepts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder_core.foundation.errors import BadOption, NoExampleInputs, NoLoss
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.inputs.labels import require_labels
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.inputs.transformers_inputs import series
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.names import OTHER_TASK
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.validation.leaves import leaves_of

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
IMAGE = {**TEXT, "image_size": 32, "patch_size": 8, "num_labels": 3}
SOUND = {
    **TEXT,
    "conv_dim": [16, 16, 16, 16],
    "conv_stride": [5, 4, 4, 4],
    "conv_kernel": [10, 4, 4, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_labels": 3,
    "layerdrop": 0.0,
}
SERIES = {"d_model": 16, "num_attention_heads": 2, "ffn_dim": 16, "prediction_length": 4}
LAGS = {**SERIES, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2}
STAGES = {"hidden_sizes": [16, 16, 16, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "YolosForObjectDetection": ("object-detection", {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 4}),
    "OwlViTForObjectDetection": (
        "zero-shot-object-detection",
        {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 32},
    ),
    "SegformerForSemanticSegmentation": ("semantic-segmentation", {**STAGES, "decoder_hidden_size": 16}),
    "GLPNForDepthEstimation": ("depth-estimation", {**STAGES, "decoder_hidden_size": 16}),
    "ViTForMaskedImageModeling": ("masked-image-modeling", {**IMAGE, "encoder_stride": 8}),
    "Swin2SRForImageSuperResolution": (
        "image-to-image",
        {"image_size": 16, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4, "num_channels": 3},
    ),
    "VideoMAEForVideoClassification": ("video-classification", {**IMAGE, "num_frames": 4}),
    "CLIPModel": ("zero-shot-image-classification", {"text_config": TEXT, "vision_config": IMAGE}),
    "ViltForQuestionAnswering": ("visual-question-answering", IMAGE),
    "LayoutLMForQuestionAnswering": ("document-question-answering", TEXT),
    "LayoutLMv3ForTokenClassification": (
        "token-classification",
        {**TEXT, "input_size": 32, "patch_size": 8, "coordinate_size": 4, "shape_size": 8, "num_labels": 3},
    ),
    "Wav2Vec2ForXVector": ("audio-xvector", {**SOUND, "tdnn_dim": [16] * 5, "xvector_output_dim": 16}),
    "Wav2Vec2ForAudioFrameClassification": ("audio-frame-classification", SOUND),
    "Wav2Vec2ForCTC": ("ctc", SOUND),
    "PatchTSTForPrediction": (OTHER_TASK, {**SERIES, "num_input_channels": 2, "num_hidden_layers": 1}),
    "TimeSeriesTransformerForPrediction": (OTHER_TASK, LAGS),
    "BertLMHeadModel": ("causal-lm", TEXT),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, LoadedModel]:
    """The task that is expected, and the model."""
    task, config = CASES[request.param]
    return task, load_model(ModelRequest(sample=SampleModel(request.param, config)))


def test_architecture_keeps_its_head_and_takes_the_inputs(case: tuple[str, LoadedModel]) -> None:
    task, loaded = case
    assert loaded.task == task
    assert [type(loaded.model).__name__] == loaded.config.architectures
    runs = []
    for _ in range(2):
        inputs = example_inputs(loaded, batch=2, seq=12, seed=1)
        torch.manual_seed(0)  # ViLT chooses among the patches of an image
        with torch.no_grad():
            runs.append(leaves_of(loaded.model(**inputs)).tensors)
    assert runs[0].keys() == runs[1].keys()
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_labels_give_a_loss_that_is_finite(case: tuple[str, LoadedModel]) -> None:
    task, loaded = case
    try:
        require_labels(task)
    except NoLoss:
        pytest.skip("the task has no labels")
    torch.manual_seed(0)
    assert loaded.model(**example_inputs(loaded, batch=2, seq=12, seed=1, labels=True)).loss.isfinite()


def test_class_without_a_task_is_reported_as_optimized_unchanged() -> None:
    request = ModelRequest(sample=SampleModel("PatchTSTForPrediction", CASES["PatchTSTForPrediction"][1]))
    (note,) = load_model(request).notes
    assert note.startswith("PatchTSTForPrediction has no task that Thunder knows")


def test_task_other_is_refused_for_a_class_that_has_a_task() -> None:
    with pytest.raises(BadOption, match="for classes that no other task lists"):
        load_model(ModelRequest(sample=SampleModel("BertForMaskedLM", TEXT), task="other"))


def test_time_series_of_an_unknown_form_are_refused() -> None:
    config: Any = SimpleNamespace(model_type="timesfm")
    with pytest.raises(NoExampleInputs, match="no example time series for the family 'timesfm'"):
        series(RandomInputs.from_seed(config, batch=1, seq=4, seed=0))
