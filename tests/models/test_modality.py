"""What models read, in words, from their configs."""

from __future__ import annotations

import pytest
from transformers import ASTConfig, BertConfig, CLIPConfig, LlamaConfig, ViTConfig, Wav2Vec2Config, WhisperConfig

from thunder_core.workflow.models.inputs.size_words import sizes_in_words
from thunder_core.workflow.models.request.input_size import InputSize


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BertConfig(architectures=["BertModel"]), "sequence 128"),
        (BertConfig(), "sequence 128"),
        (ViTConfig(architectures=["ViTForImageClassification"], image_size=[32, 48]), "32 x 48 pixels"),
        (CLIPConfig(architectures=["CLIPModel"]), "sequence 128, 224 x 224 pixels"),
        (Wav2Vec2Config(architectures=["Wav2Vec2ForCTC"]), "a second of sound"),
        (ASTConfig(architectures=["ASTForAudioClassification"]), "a spectrogram of 1024 frames"),
        (
            WhisperConfig(architectures=["WhisperForConditionalGeneration"]),
            "a spectrogram, sequence 128 for the decoder",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_sizes_are_reported_in_units_that_the_model_reads(config, words):
    assert sizes_in_words(config, InputSize(1, 128)) == words


def test_requested_sizes_are_reported():
    llama, vit = LlamaConfig(architectures=["LlamaForCausalLM"]), ViTConfig(architectures=["ViTModel"])
    assert sizes_in_words(llama, InputSize(1, 1, cache=64)) == "sequence 1 and cache 64"
    assert sizes_in_words(vit, InputSize(1, 1, height=64)) == "64 x 224 pixels"
