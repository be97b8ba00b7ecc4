"""Example inputs: the model takes them, they are the same every time, and they look like real ones."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers

from thunder_core.foundation.errors import BadOption, NoExampleInputs, NoLoss, SequenceTooLong
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.inputs.labels import IGNORED_LABEL
from thunder_core.workflow.models.inputs.sequence import check_sequence_length, longest_sequence
from thunder_core.workflow.models.inputs.transformers_inputs import with_mask
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES

TINY_ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 99,
    "max_position_embeddings": 40,
}
TINY_SPEECH = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
TINY_WHISPER = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 99,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
TINY_CLIP = {
    "projection_dim": 16,
    "text_config": {**TINY_ENCODER, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": {k: v for k, v in TINY_ENCODER.items() if "size" in k or "num" in k}
    | {"image_size": 16, "patch_size": 8},
}
TINY_AST = {
    **{k: v for k, v in TINY_ENCODER.items() if k.startswith(("hid", "num", "int"))},
    "max_length": 32,
    "num_mel_bins": 16,
}
TINY_LISTENER = {name: value for name, value in TINY_WHISPER.items() if name != "num_mel_bins"} | {
    "input_feat_per_channel": 16,
    "max_source_positions": 200,
}
TINY_DINO = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "num_queries": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "text_config": {**TINY_ENCODER, "model_type": "bert"},
    "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16]}
    | {"depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"]},
}

BERT = SAMPLES["bert"].config
T5 = SAMPLES["t5"].config

# Architecture, config, task (None: deduced): every family that is sampled, and one of each other kind of input.
MODELS = [
    *((s.architecture, s.config) for s in SAMPLES.values()),
    *((f"BertFor{head}", BERT) for head in ("SequenceClassification", "TokenClassification", "QuestionAnswering")),
    *((f"BertFor{head}", BERT) for head in ("MultipleChoice", "NextSentencePrediction")),
    ("BertModel", BERT),
    ("BertForSequenceClassification", {**BERT, "num_labels": 1}),
    ("BertForSequenceClassification", {**BERT, "num_labels": 3, "problem_type": "multi_label_classification"}),
    ("LlamaForSequenceClassification", SAMPLES["llama"].config),
    ("GPT2ForSequenceClassification", SAMPLES["gpt2"].config),
    ("ViTModel", SAMPLES["vit"].config),
    ("T5Model", T5),
    ("T5EncoderModel", T5),
    ("T5ForSequenceClassification", T5),
    ("RobertaForMaskedLM", {**TINY_ENCODER, "pad_token_id": 1}),
    ("Wav2Vec2ForCTC", TINY_SPEECH),
    ("WhisperForConditionalGeneration", TINY_WHISPER),
    ("CLIPModel", TINY_CLIP),
    ("CLIPForImageClassification", TINY_CLIP),
    ("FNetForMaskedLM", TINY_ENCODER | {"type_vocab_size": 2, "pad_token_id": 0}),
    ("FNetForTokenClassification", TINY_ENCODER | {"type_vocab_size": 2, "pad_token_id": 0}),
    ("CanineForTokenClassification", {**TINY_ENCODER, "num_labels": 3}),
    ("EncodecModel", {"upsampling_ratios": [4, 2], "num_filters": 4, "hidden_size": 8, "codebook_size": 16}),
    ("ASTForAudioClassification", TINY_AST),
    ("Speech2TextForConditionalGeneration", TINY_LISTENER),
]
WITHOUT_LABELS = {
    "BertModel",
    "ViTModel",
    "T5Model",
    "T5EncoderModel",
    "Wav2Vec2ForCTC",
    "CLIPModel",
    "GroundingDinoModel",
} | {"EncodecModel"}


def load(architecture, config, **options):
    return load_model(ModelRequest(sample=SampleModel(architecture, config), **options))


@pytest.mark.parametrize(("architecture", "config"), MODELS, ids=[f"{a}-{i}" for i, (a, _) in enumerate(MODELS)])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_model_takes_its_example_inputs(architecture, config, batch):
    loaded = load(architecture, config)
    inputs = example_inputs(loaded, batch=batch, seq=12, seed=1)
    with torch.no_grad():
        outputs = loaded.model(**inputs)
        assert all(torch.isfinite(t).all() for t in outputs.to_tuple() if isinstance(t, torch.Tensor))
        if architecture not in WITHOUT_LABELS:
            labelled = loaded.model(**example_inputs(loaded, batch=batch, seq=12, seed=1, labels=True))
            assert torch.isfinite(labelled.loss)
    again = example_inputs(loaded, batch=batch, seq=12, seed=1)
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)
    other = example_inputs(loaded, batch=batch, seq=12, seed=2)
    assert any(not torch.equal(inputs[name], other[name]) for name in inputs)
    assert all(len(tensor) == batch for tensor in inputs.values())


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_all_but_the_first_sample_end_in_padding(name):
    loaded = load_model(ModelRequest(sample=SAMPLES[name]))
    inputs = example_inputs(loaded, batch=8, seq=16, seed=0)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    lengths = mask.sum(1)
    assert lengths[0] == 16
    assert all(8 <= length < 16 for length in lengths[1:])
    assert torch.equal(mask, (torch.arange(16) < lengths[:, None]).long())
    assert (ids[mask == 0] == loaded.config.pad_token_id).all()
    assert (ids[mask == 1] != loaded.config.pad_token_id).all()
    assert ids.max() < loaded.config.vocab_size


@pytest.mark.parametrize(("batch", "seq"), [(1, 16), (3, 1), (1, 1)])
def test_one_sample_or_one_token_is_never_padding(batch, seq):
    loaded = load_model(ModelRequest(sample=SAMPLES["llama"]))
    inputs = example_inputs(loaded, batch=batch, seq=seq, seed=0)
    assert (inputs["attention_mask"] == 1).all()
    assert inputs["input_ids"].shape == (batch, seq)


def test_floating_inputs_have_the_models_dtype():
    loaded = load_model(ModelRequest(sample=SAMPLES["vit"], dtype="bfloat16"))
    pixels = example_inputs(loaded, batch=2, seq=1, seed=0)["pixel_values"]
    assert (pixels.dtype, pixels.shape) == (torch.bfloat16, (2, 3, 32, 32))


def test_labels_of_a_causal_lm_ignore_the_padding():
    loaded = load_model(ModelRequest(sample=SAMPLES["llama"]))
    inputs = example_inputs(loaded, batch=4, seq=16, seed=0, labels=True)
    assert torch.equal(inputs["labels"] == IGNORED_LABEL, inputs["attention_mask"] == 0)


def test_an_encoder_decoder_says_its_labels_one_step_later():
    loaded = load_model(ModelRequest(sample=SAMPLES["t5"]))
    inputs = example_inputs(loaded, batch=2, seq=16, seed=0, labels=True)
    assert (inputs["decoder_input_ids"][:, 0] == loaded.config.decoder_start_token_id).all()
    assert torch.equal(inputs["labels"][:, :-1], inputs["decoder_input_ids"][:, 1:])
    assert (inputs["labels"][:, -1] == loaded.config.eos_token_id).all()


def test_labels_of_frames_are_one_hot():
    config = {**TINY_SPEECH, "num_labels": 3}
    loaded = load("Wav2Vec2ForAudioFrameClassification", config)
    inputs = example_inputs(loaded, batch=2, seq=4, seed=0, labels=True)
    assert inputs["labels"].shape == loaded.model(**inputs).logits.shape
    assert (inputs["labels"].sum(-1) == 1).all()


def test_labels_of_objects_are_classes_and_boxes_within_the_image():
    loaded = load(
        "YolosForObjectDetection",
        {**SAMPLES["vit"].config, "image_size": [32, 32], "num_detection_tokens": 4, "num_labels": 3},
    )
    labels = example_inputs(loaded, batch=2, seq=4, seed=0, labels=True)["labels"]
    assert [{name: tuple(value.shape) for name, value in image.items()} for image in labels] == [
        {"class_labels": (2,), "boxes": (2, 4)}
    ] * 2
    for image in labels:
        centers, sizes = image["boxes"].split(2, dim=1)
        assert (sizes > 0).all() and (centers - sizes / 2 >= 0).all() and (centers + sizes / 2 <= 1).all()
        assert image["class_labels"].max() < 3


def test_a_base_model_has_no_labels():
    loaded = load("BertModel", BERT)
    with pytest.raises(NoLoss, match="no labels"):
        example_inputs(loaded, batch=1, seq=4, seed=0, labels=True)


@pytest.mark.parametrize("sizes", [{"batch": 0, "seq": 4}, {"batch": 1, "seq": 0}, {"batch": -1, "seq": 4}])
def test_sizes_are_at_least_one(sizes):
    loaded = load_model(ModelRequest(sample=SAMPLES["llama"]))
    with pytest.raises(BadOption):
        example_inputs(loaded, **sizes, seed=0)


def test_a_classifier_without_a_padding_token_takes_one_sample():
    loaded = load("GPT2ForSequenceClassification", {**SAMPLES["gpt2"].config, "pad_token_id": None})
    loaded.model(**example_inputs(loaded, batch=1, seq=4, seed=0))
    with pytest.raises(BadOption, match="no padding token"):
        example_inputs(loaded, batch=2, seq=4, seed=0)


def test_a_model_gets_all_inputs_that_its_forward_requires():
    loaded = load("GroundingDinoModel", TINY_DINO)
    inputs = example_inputs(loaded, batch=2, seq=6, seed=1)
    assert inputs.keys() == {"pixel_values", "input_ids", "attention_mask"}
    assert loaded.model(**inputs).last_hidden_state.shape[0] == 2


def test_a_kind_of_input_without_examples_says_so(monkeypatch):
    loaded = load_model(ModelRequest(sample=SAMPLES["vit"]))
    loaded.model.main_input_name = "table_values"
    monkeypatch.setattr(type(loaded.model), "forward", lambda self, table_values: table_values)
    with pytest.raises(NoExampleInputs, match="'table_values'") as raised:
        example_inputs(loaded, batch=1, seq=4, seed=0)
    assert raised.value.status == 8


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (transformers.LlamaConfig(max_position_embeddings=256), 256),
        (transformers.GPT2Config(n_positions=64), 64),
        (transformers.BertConfig(), 512),
        (transformers.RobertaConfig(max_position_embeddings=514, pad_token_id=1), 512),
        (transformers.T5Config(n_positions=512), None),
        (transformers.ViTConfig(), None),
        (transformers.BloomConfig(), None),
        (transformers.XLNetConfig(), None),
        (transformers.WhisperConfig(), 448),
        (transformers.CLIPConfig(), 77),
        (transformers.Gemma3Config(text_config={"max_position_embeddings": 128}), 128),
    ],
    ids=lambda value: getattr(value, "model_type", str(value)),
)
def test_the_longest_sequence_is_the_configs(config, longest):
    assert longest_sequence(config) == longest
    check_sequence_length(config, longest or 1_000_000)
    if longest is not None:
        with pytest.raises(SequenceTooLong) as raised:
            check_sequence_length(config, longest + 1)
        assert str(longest) in raised.value.fix
        assert (raised.value.code, raised.value.status) == ("TH0209", 2)


def test_the_longest_sequence_can_be_run_and_no_longer():
    loaded = load("RobertaForMaskedLM", {**TINY_ENCODER, "pad_token_id": 1})
    longest = longest_sequence(loaded.config)
    loaded.model(**example_inputs(loaded, batch=1, seq=longest, seed=0))
    with pytest.raises(SequenceTooLong):
        example_inputs(loaded, batch=1, seq=longest + 1, seed=0)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        loaded.model(input_ids=torch.full((1, longest + 1), 5))


def test_images_have_no_sequence_length():
    loaded = load_model(ModelRequest(sample=SAMPLES["vit"]))
    assert set(example_inputs(loaded, batch=1, seq=10**6, seed=0)) == {"pixel_values"}


def test_inputs_do_not_touch_the_global_random_state():
    loaded = dataclasses.replace(load_model(ModelRequest(sample=SAMPLES["t5"])))
    before = torch.get_rng_state()
    example_inputs(loaded, batch=2, seq=8, seed=0, labels=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "batch"), [("llama", 3), ("bert", 1), ("t5", 2)])
def test_texts_without_padding_have_full_length_and_no_mask(name, batch):
    loaded = load_model(ModelRequest(sample=SAMPLES[name]))
    inputs = example_inputs(loaded, batch=batch, seq=9, seed=0, padded=False)
    assert "attention_mask" not in inputs
    assert inputs["input_ids"].shape == (batch, 9)
    assert not torch.isin(inputs["input_ids"], torch.tensor(loaded.config.pad_token_id or 0)).any()
    padded = with_mask(loaded, inputs)
    assert padded is not None
    assert padded["attention_mask"].tolist() == [[1] * 7 + [0] * 2] * batch
    assert with_mask(loaded, padded) is None
