"""Names of dtypes, devices and tasks, and the errors for names that do not exist."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BartConfig,
    BertConfig,
    Gemma3Config,
    LlamaConfig,
    MistralConfig,
    T5Config,
    ViTConfig,
    Wav2Vec2Config,
    WhisperConfig,
)
from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

from thunder_core.foundation.errors import BadOption, DeviceNotAvailable, UnknownName
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.workflow.models.request.device import parse_device
from thunder_core.workflow.models.request.dtype import parse_dtype
from thunder_core.workflow.models.request.names import HUB_TASKS, TASKS, spelled_task
from thunder_core.workflow.models.request.task import (
    auto_class,
    classes_of,
    deduce_task,
    require_task,
    task_among,
    tasks_of,
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", torch.float32),
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("torch.bfloat16", torch.bfloat16),
        ("FP16", torch.float16),
        ("half", torch.float16),
        ("float64", torch.float64),
        ("double", torch.float64),
    ],
)
def test_dtypes_have_names_and_aliases(name, dtype):
    assert parse_dtype(name) is dtype
    assert parse_dtype(dtype_name(dtype)) is dtype


@pytest.mark.parametrize("name", ["bfloat61", "int8", "", "float"[::-1]])
def test_an_unknown_dtype_lists_the_known(name):
    with pytest.raises(UnknownName) as raised:
        parse_dtype(name)
    assert repr(name) in raised.value.what
    assert "bfloat16" in raised.value.fix
    assert raised.value.status == 2


def test_the_nearest_dtype_is_suggested():
    with pytest.raises(UnknownName) as raised:
        parse_dtype("bfloat61")
    assert raised.value.fix.startswith("did you mean bfloat16")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0:1", "", "cuda:-1", "meta", "cudaa"])
def test_an_unknown_device_lists_the_known(name):
    with pytest.raises(UnknownName) as raised:
        parse_device(name)
    assert "cuda" in raised.value.fix
    assert raised.value.code == "TH0202"


def test_the_cpu_is_always_there():
    assert parse_device("cpu") == torch.device("cpu")
    assert parse_device(" CPU ") == torch.device("cpu")


def test_a_build_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(DeviceNotAvailable, match="this build of PyTorch") as raised:
        parse_device("cuda")
    assert (raised.value.code, raised.value.status) == ("TH0302", 3)


@pytest.mark.parametrize(("count", "asked", "said"), [(0, "cuda", "finds no GPU"), (2, "cuda:2", "finds 2 GPUs")])
def test_a_gpu_that_is_not_there_is_refused(monkeypatch, count, asked, said):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(DeviceNotAvailable, match=said):
        parse_device(asked)


def test_a_gpu_that_is_there_is_taken(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("config", "architecture", "task"),
    [
        (LlamaConfig, "LlamaForCausalLM", "causal-lm"),
        (BertConfig, "BertLMHeadModel", "causal-lm"),
        (BertConfig, "BertForMaskedLM", "masked-lm"),
        (BertConfig, "BertForSequenceClassification", "sequence-classification"),
        (BertConfig, "BertForTokenClassification", "token-classification"),
        (BertConfig, "BertForQuestionAnswering", "question-answering"),
        (BertConfig, "BertForPreTraining", "pretraining"),
        (BertConfig, "BertModel", "feature-extraction"),
        (ViTConfig, "ViTForImageClassification", "image-classification"),
        (T5Config, "T5ForConditionalGeneration", "seq2seq-lm"),
        (T5Config, "T5EncoderModel", "text-encoding"),
        (BartConfig, "BartForConditionalGeneration", "seq2seq-lm"),
        (Gemma3Config, "Gemma3ForConditionalGeneration", "image-text-to-text"),
        (Gemma3Config, "Gemma3ForCausalLM", "causal-lm"),
    ],
)
def test_the_task_follows_from_the_architecture(config, architecture, task):
    assert deduce_task(config(architectures=[architecture])) == (task, None)


def test_an_architecture_of_a_relative_keeps_its_task():
    config = MistralConfig(architectures=["LlamaForCausalLM"])
    assert deduce_task(config) == ("causal-lm", None)


@pytest.mark.parametrize("architectures", [None, [], ["GPT2DoubleHeadsModel"]])
def test_without_a_known_task_the_base_model_is_taken_and_it_is_said(architectures):
    task, note = deduce_task(LlamaConfig(architectures=architectures))
    assert task == "feature-extraction"
    assert note is not None
    assert "base model" in note


def test_an_unknown_task_suggests_the_nearest():
    assert spelled_task("Causal_LM") == ("causal-lm",)
    with pytest.raises(UnknownName) as raised:
        spelled_task("casual-lm")
    assert raised.value.fix.startswith("did you mean causal-lm")


def test_a_task_that_a_family_does_not_have_is_refused():
    with pytest.raises(BadOption, match="'vit' for the task 'causal-lm'") as raised:
        require_task("causal-lm", ViTConfig())
    assert "image-classification" in raised.value.fix


def test_every_task_has_an_auto_class_and_a_family():
    for task in TASKS:
        assert hasattr(auto_class(task), "from_config")
        assert any(task in tasks_of(family) for family in classes_of(task))


@pytest.mark.parametrize(
    ("name", "config", "task"),
    [
        ("text-generation", LlamaConfig(), "causal-lm"),
        ("Text_Classification", BertConfig(), "sequence-classification"),
        ("sentiment-analysis", BertConfig(), "sequence-classification"),
        ("fill-mask", BertConfig(), "masked-lm"),
        ("summarization", T5Config(), "seq2seq-lm"),
        ("ner", BertConfig(), "token-classification"),
        ("automatic-speech-recognition", WhisperConfig(), "speech-seq2seq"),
        ("automatic-speech-recognition", Wav2Vec2Config(), "ctc"),
        ("automatic-speech-recognition", LlamaConfig(), "speech-seq2seq"),
        ("image-feature-extraction", ViTConfig(), "feature-extraction"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_the_hubs_names_of_tasks(name, config, task):
    assert task_among(spelled_task(name), config) == task


def test_the_hubs_names_are_no_tasks_of_ours_and_lead_to_some():
    assert not set(HUB_TASKS) & set(TASKS)
    assert {task for tasks in HUB_TASKS.values() for task in tasks} <= set(TASKS)
    with pytest.raises(UnknownName) as raised:
        spelled_task("text-generaton")
    assert "did you mean text-generation" in raised.value.fix


@pytest.mark.parametrize("tasks", [SUPPORTED_TASKS, TASK_ALIASES], ids=["pipelines", "aliases"])
def test_pipelines_that_models_of_ours_serve_have_their_names(tasks):
    unserved = {"any-to-any", "decision", "document-question-answering", "table-question-answering", "text-to-audio"}
    other = ("zero-shot-", "text-to-", "image-segmentation", "detection", "estimation", "keypoint", "mask-", "video")
    left_out = {name for name in tasks if name in unserved or any(part in name for part in other)}
    assert {name for name in tasks if name not in TASKS and name not in HUB_TASKS} <= left_out
