"""Folders in Hugging Face layout, sound and damaged, for the tests of loading."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves a sample once and gives its folder."""
    folders: dict[tuple[str, object], Path] = {}

    def save(name: str, shard_size: str | None = None) -> Path:
        if (name, shard_size) not in folders:
            folder = tmp_path_factory.mktemp(name)
            model = load_model(ModelRequest(sample=SAMPLES[name])).model
            model.save_pretrained(folder, **({} if shard_size is None else {"max_shard_size": shard_size}))
            folders[name, shard_size] = folder
        return folders[name, shard_size]

    return save


@pytest.fixture
def folder(saved: Callable[..., Path], tmp_path: Path) -> Path:
    """A saved tiny Llama in a folder of the test's own."""
    return Path(shutil.copytree(saved("llama"), tmp_path / "llama"))


@pytest.fixture
def sharded(saved: Callable[..., Path], tmp_path: Path) -> Path:
    """A saved tiny Llama whose weights lie in several files, in a folder of the test's own."""
    return Path(shutil.copytree(saved("llama", "200KB"), tmp_path / "sharded"))
