"""`thunder optimize --recipe auto` chooses the class, the task, the inputs and the metric of a folder of each task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.sentence_folders import write_sentence_folder
from tests.zoo.configs import small_config
from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.models.inputs.batches import CAUSAL, ENDS, STARTS
from thunder_core.workflow.models.inputs.input_names import LABELS
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.inputs.labels import MAKERS
from thunder_core.workflow.models.inputs.size_words import named_inputs
from thunder_core.workflow.models.inputs.transformers_inputs import modalities
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.names import OTHER_TASK
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, plan
from thunder_core.workflow.pipeline.session.evaluate import metric_for
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.metric import EvaluatedBatch, MetricSums, count, result

torch.set_num_threads(1)

TEXT, PIXELS = "input_ids attention_mask", "pixel_values"
SEGMENTS = f"{TEXT} token_type_ids"
SPEECH = {
    "conv_dim": [16, 16, 16, 16],
    "conv_stride": [5, 4, 4, 4],
    "conv_kernel": [10, 4, 4, 4],
    "num_feat_extract_layers": 4,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
VECTOR = {**SPEECH, "tdnn_dim": [16] * 5, "xvector_output_dim": 16}
STAGES = {"hidden_sizes": [16, 16, 16, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 16, 16, 32], "depths": [1] * 4}
BACKBONE = {"model_type": "resnet", **RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SERIES = {"d_model": 16, "context_length": 8, "prediction_length": 4, "num_input_channels": 2}
LAGS = {**SERIES, "lags_sequence": [1, 2], "num_time_features": 2}
DERIVED = ("id2label", "label2id", "feature_size")  # follows from other values of a config


@dataclass(frozen=True)
class Folder:
    """The content of a folder, and the expected plan for it."""

    family: str
    architecture: str
    task: str
    inputs: str
    metric: str
    config: Mapping[str, Any] = field(default_factory=dict)


FOLDERS = [
    Folder("llama", "LlamaForCausalLM", "causal-lm", TEXT, "perplexity"),
    Folder("gpt2", "GPT2LMHeadModel", "causal-lm", TEXT, "perplexity"),
    Folder("mixtral", "MixtralForCausalLM", "causal-lm", TEXT, "perplexity"),
    Folder("mamba", "MambaForCausalLM", "causal-lm", TEXT, "perplexity"),
    Folder("bert", "BertLMHeadModel", "causal-lm", TEXT, "perplexity"),
    Folder("bert", "BertForMaskedLM", "masked-lm", TEXT, "perplexity"),
    Folder("roberta", "RobertaForMaskedLM", "masked-lm", TEXT, "perplexity"),
    Folder("t5", "T5ForConditionalGeneration", "seq2seq-lm", f"{TEXT} decoder_input_ids", "perplexity"),
    Folder("bart", "BartForConditionalGeneration", "seq2seq-lm", f"{TEXT} decoder_input_ids", "perplexity"),
    Folder("t5", "T5EncoderModel", "text-encoding", TEXT, "cosine"),
    Folder("bert", "BertForSequenceClassification", "sequence-classification", TEXT, "accuracy"),
    Folder("bart", "BartForSequenceClassification", "sequence-classification", TEXT, "accuracy"),
    Folder(
        "distilbert", "DistilBertForSequenceClassification", "sequence-classification", TEXT, "mse", {"num_labels": 1}
    ),
    Folder(
        "electra",
        "ElectraForSequenceClassification",
        "sequence-classification",
        TEXT,
        "accuracy",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    Folder("roberta", "RobertaForTokenClassification", "token-classification", TEXT, "accuracy"),
    Folder("gpt2", "GPT2ForTokenClassification", "token-classification", TEXT, "accuracy"),
    Folder("bert", "BertForMultipleChoice", "multiple-choice", TEXT, "accuracy"),
    Folder("bert", "BertForNextSentencePrediction", "next-sentence-prediction", TEXT, "accuracy"),
    Folder("bert", "BertForPreTraining", "pretraining", TEXT, "cosine"),
    Folder("distilbert", "DistilBertForQuestionAnswering", "question-answering", TEXT, "accuracy"),
    Folder("llama", "LlamaForQuestionAnswering", "question-answering", TEXT, "accuracy"),
    Folder("tapas", "TapasForQuestionAnswering", "table-question-answering", TEXT, "cosine"),
    Folder("layoutlm", "LayoutLMForQuestionAnswering", "document-question-answering", f"{TEXT} bbox", "accuracy"),
    Folder(
        "layoutlmv3",
        "LayoutLMv3ForQuestionAnswering",
        "document-question-answering",
        f"{TEXT} {PIXELS} bbox",
        "accuracy",
        {"coordinate_size": 4, "shape_size": 8},
    ),
    Folder("vilt", "ViltForQuestionAnswering", "visual-question-answering", f"{TEXT} {PIXELS}", "accuracy"),
    Folder("bert", "BertModel", "feature-extraction", TEXT, "cosine"),
    Folder("vit", "ViTModel", "feature-extraction", PIXELS, "cosine"),
    Folder("wav2vec2", "Wav2Vec2Model", "feature-extraction", "input_values", "cosine", SPEECH),
    Folder("vit", "ViTForImageClassification", "image-classification", PIXELS, "accuracy"),
    Folder("resnet", "ResNetForImageClassification", "image-classification", PIXELS, "accuracy", RESNET),
    Folder("clip", "CLIPForImageClassification", "image-classification", PIXELS, "accuracy"),
    Folder("clip", "CLIPModel", "zero-shot-image-classification", f"{TEXT} {PIXELS}", "cosine"),
    Folder("siglip", "SiglipModel", "zero-shot-image-classification", f"{TEXT} {PIXELS}", "cosine"),
    Folder("yolos", "YolosForObjectDetection", "object-detection", PIXELS, "cosine", {"image_size": [32, 32]}),
    Folder("detr", "DetrForObjectDetection", "object-detection", PIXELS, "cosine", {"backbone_config": BACKBONE}),
    Folder(
        "detr",
        "DetrForSegmentation",
        "universal-segmentation",
        PIXELS,
        "cosine",
        {"backbone_config": BACKBONE, "encoder_attention_heads": 8, "decoder_attention_heads": 8},
    ),
    Folder("owlvit", "OwlViTForObjectDetection", "zero-shot-object-detection", f"{TEXT} {PIXELS}", "cosine"),
    Folder("segformer", "SegformerForSemanticSegmentation", "semantic-segmentation", PIXELS, "accuracy", STAGES),
    Folder(
        "upernet",
        "UperNetForSemanticSegmentation",
        "semantic-segmentation",
        PIXELS,
        "accuracy",
        {"backbone_config": BACKBONE, "hidden_size": 16, "auxiliary_in_channels": 16, "auxiliary_channels": 16},
    ),
    Folder("eomt", "EomtForUniversalSegmentation", "universal-segmentation", PIXELS, "cosine"),
    Folder("glpn", "GLPNForDepthEstimation", "depth-estimation", PIXELS, "mse", {**STAGES, "decoder_hidden_size": 16}),
    Folder(
        "vit",
        "ViTForMaskedImageModeling",
        "masked-image-modeling",
        f"{PIXELS} bool_masked_pos",
        "cosine",
        {"encoder_stride": 8},
    ),
    Folder(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        "image-to-image",
        PIXELS,
        "cosine",
        {"image_size": 16, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4},
    ),
    Folder("superpoint", "SuperPointForKeypointDetection", "keypoint-detection", PIXELS, "cosine"),
    Folder("resnet", "ResNetBackbone", OTHER_TASK, PIXELS, "cosine", {**BACKBONE, "out_indices": [1, 2, 3, 4]}),
    Folder("videomae", "VideoMAEForVideoClassification", "video-classification", PIXELS, "accuracy", {"num_frames": 4}),
    Folder(
        "timesformer",
        "TimesformerForVideoClassification",
        "video-classification",
        PIXELS,
        "accuracy",
        {"num_frames": 4},
    ),
    Folder("wav2vec2", "Wav2Vec2ForCTC", "ctc", "input_values", "cosine", SPEECH),
    Folder("hubert", "HubertForSequenceClassification", "audio-classification", "input_values", "accuracy", SPEECH),
    Folder(
        "audio-spectrogram-transformer",
        "ASTForAudioClassification",
        "audio-classification",
        "input_values",
        "accuracy",
        {"max_length": 32, "num_mel_bins": 16},
    ),
    Folder("wavlm", "WavLMForXVector", "audio-xvector", "input_values", "cosine", VECTOR),
    Folder(
        "wav2vec2",
        "Wav2Vec2ForAudioFrameClassification",
        "audio-frame-classification",
        "input_values",
        "accuracy",
        SPEECH,
    ),
    Folder(
        "whisper",
        "WhisperForConditionalGeneration",
        "speech-seq2seq",
        "input_features decoder_input_ids",
        "perplexity",
        {"num_mel_bins": 8, "max_source_positions": 12},
    ),
    Folder("vits", "VitsModel", "text-to-waveform", TEXT, "cosine"),
    Folder("llava", "LlavaForConditionalGeneration", "image-text-to-text", TEXT, "perplexity"),
    Folder("blip", "BlipForConditionalGeneration", "image-text-to-text", f"{TEXT} {PIXELS}", "perplexity"),
    Folder("patchtst", "PatchTSTForPrediction", OTHER_TASK, "past_values", "cosine", SERIES),
    Folder(
        "time_series_transformer",
        "TimeSeriesTransformerForPrediction",
        OTHER_TASK,
        "past_values past_time_features past_observed_mask future_values future_time_features",
        "cosine",
        LAGS,
    ),
]


def save(folder: Path, expected: Folder) -> None:
    """Write a small model with random weights."""
    config = small_config(expected.family, architecture=expected.architecture)
    values = config.to_dict() | dict(expected.config)
    for derived in DERIVED:
        values.pop(derived, None)
    config = type(config).from_dict(values)
    torch.manual_seed(0)
    getattr(transformers, expected.architecture)(config).save_pretrained(folder)


def plan_for(folder: Path, **options: Any) -> Plan:
    return plan(Request(recipe="auto", model=ModelRequest(str(folder)), batch=2, **options), dry_run=True)


@pytest.mark.parametrize("expected", FOLDERS, ids=lambda folder: folder.architecture)
def test_folder_gets_its_class_task_inputs_and_metric(expected: Folder, tmp_path: Path) -> None:
    save(tmp_path / "model", expected)
    planned = plan_for(tmp_path / "model")
    rows = dict(planned.rows())
    assert planned.prepared.loading.task == expected.task
    assert rows["model"].endswith(f"({expected.architecture})")
    loaded = load_model(planned.prepared.model)
    assert type(loaded.model).__name__ == expected.architecture
    assert named_inputs(planned.prepared.loading.config) == modalities(loaded)
    inputs = example_inputs(loaded, batch=2, seq=8, seed=1)
    assert sorted(inputs) == sorted(expected.inputs.split())
    assert metric_for(loaded.task, loaded.config) == expected.metric
    require_measurable(expected.metric, loaded, inputs)


def require_measurable(metric: str, loaded: LoadedModel, inputs: dict[str, Any]) -> None:
    """Check that the metric fits the outputs of the model and the labels of its task."""
    with torch.no_grad():
        leaves = leaves_of(loaded.model(**inputs))
    labels = None if metric == "cosine" else labels_of(loaded, leaves)
    tally = MetricSums()
    mask = inputs.get("attention_mask")
    count(metric, tally, EvaluatedBatch(leaves, leaves, labels, mask, causal=loaded.task in CAUSAL))
    before, after = result(metric, tally)
    assert before == after


def labels_of(loaded: LoadedModel, leaves: Leaves) -> torch.Tensor:
    """Labels as for training, or a class for each position if the task has none."""
    if loaded.task not in MAKERS:
        return leaves.tensors["logits"].argmax(-1)
    labelled = example_inputs(loaded, batch=2, seq=8, seed=1, labels=True)
    return labelled[LABELS] if LABELS in labelled else torch.stack([labelled[STARTS], labelled[ENDS]], dim=1)


def test_a_folder_of_sentence_transformers_gets_sentence_embeddings(tmp_path: Path) -> None:
    write_sentence_folder(tmp_path / "model", [("Pooling", {"word_embedding_dimension": 16})])
    planned = plan_for(tmp_path / "model")
    loaded = load_model(planned.prepared.model)
    assert (loaded.task, metric_for(loaded.task, loaded.config)) == ("sentence-similarity", "cosine")
    inputs = example_inputs(loaded, batch=2, seq=8, seed=1)
    assert sorted(inputs) == ["attention_mask", "input_ids"]
    require_measurable("cosine", loaded, inputs)


def test_images_that_a_model_can_read_and_does_not_get_are_named(tmp_path: Path) -> None:
    for name, words in (("Llava", "sequence 8, without images"), ("Blip", "sequence 8, 32 x 32 pixels")):
        expected = next(folder for folder in FOLDERS if folder.architecture == f"{name}ForConditionalGeneration")
        save(tmp_path / name, expected)
        assert words in dict(plan_for(tmp_path / name, seq=8).rows())["inputs"]


def change_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("values", [{"architectures": ["BertForJuggling"]}, {"model_type": "berta"}], ids=str)
def test_an_unknown_class_or_family_is_refused(values: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "model", Folder("bert", "BertModel", "", "", ""))
    change_config(tmp_path / "model", **values)
    with pytest.raises(ThunderError, match="does not have"):
        plan_for(tmp_path / "model")


@pytest.mark.parametrize(
    ("architectures", "note"),
    [(None, "the config names no architecture"), (["PatchTSTForPrediction"], "PatchTSTForPrediction has no task that")],
)
def test_a_choice_without_a_known_task_is_a_note(architectures: Any, note: str, tmp_path: Path) -> None:
    family = ("bert", "BertModel", {}) if architectures is None else ("patchtst", architectures[0], SERIES)
    save(tmp_path / "model", Folder(family[0], family[1], "", "", "", family[2]))
    change_config(tmp_path / "model", architectures=architectures)
    notes = [text for name, text in plan_for(tmp_path / "model").rows() if name == "note"]
    assert any(text.startswith(note) for text in notes), notes
