"""The kinds of models: which kind recognizes a folder, and which a config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertConfig, LlamaConfig, TimmWrapperConfig

from thunder_core.tracing.library.sentences.model import KEY
from thunder_core.workflow.models.diffusion.config import DiffusersConfig
from thunder_core.workflow.models.kinds.table import KINDS, kind_of, kind_of_folder
from thunder_core.workflow.models.loading.model_folder import ModelFolder

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
BERT, TIMM, UNET = {"model_type": "bert"}, {"architecture": "resnet18"}, {"_class_name": "UNet2DModel"}


def sentence_config() -> BertConfig:
    config = BertConfig()
    setattr(config, KEY, [])
    return config


@pytest.mark.parametrize(
    ("library", "content", "modules", "task"),
    [
        ("transformers", BERT, [], None),
        ("timm", TIMM, [], None),
        ("diffusers", UNET, [], None),
        ("sentence-transformers", BERT, [TRANSFORMER, POOLING], None),
        ("sentence-transformers", BERT, [TRANSFORMER, POOLING], "sentence_similarity"),
        ("transformers", BERT, [TRANSFORMER, POOLING], "feature-extraction"),
        ("transformers", BERT, [TRANSFORMER], None),
    ],
)
def test_folder_is_of_one_kind(library, content, modules, task, tmp_path: Path):
    if modules:
        (tmp_path / "modules.json").write_text(json.dumps(modules))
    folder = ModelFolder(tmp_path, tmp_path, content, task, trust_remote_code=False)
    assert kind_of_folder(folder).library == library


@pytest.mark.parametrize(
    ("library", "config"),
    [
        ("transformers", LlamaConfig()),
        ("timm", TimmWrapperConfig()),
        ("sentence-transformers", sentence_config()),
        ("diffusers", DiffusersConfig.of({}, "UNet2DModel")),
    ],
)
def test_config_is_of_one_kind(library, config):
    assert kind_of(config).library == library


def test_each_library_is_one_row():
    assert len({kind.library for kind in KINDS}) == len(KINDS)
