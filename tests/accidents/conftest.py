"""The world in which accidents happen: small models and an artifact that are made once and that no accident changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from tests.accidents.accident import World
from tests.cli.conftest import threads, thunder  # noqa: F401 - fixtures
from thunder_cli.main import main

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two small layers in Hugging Face layout."""
    folder = tmp_path_factory.mktemp("models") / "small-llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=64)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two small layers in Hugging Face layout."""
    folder = tmp_path_factory.mktemp("models") / "small-bert"
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=64)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def artifact(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the small Llama, without kernels."""
    out = tmp_path_factory.mktemp("artifacts") / "small.thunder"
    quick = ("--seq", "8", "--validate-inputs", "1", "--no-benchmark", "--without", "inductor", "--quiet")
    assert main(["optimize", str(llama), "-o", str(out), *quick]) == 0
    return out


@pytest.fixture
def world(tmp_path: Path, llama: Path, bert: Path, artifact: Path) -> World:
    """The folders of one accident."""
    (tmp_path / "copies").mkdir()
    return World(tmp_path / "here", llama, bert, artifact, tmp_path / "copies")
