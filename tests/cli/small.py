"""Shared parts of the tests of commands that load a model: small models, quick options and checks of refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

QUICK = ("--seq", 8, "--runs", 2, "--warmup", 0)


@dataclass(frozen=True)
class Result:
    """The result of a command: its exit status and output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


OWN = """
import torch
from transformers import PreTrainedModel, PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.embedding = torch.nn.Embedding(16, 4)
        self.head = torch.nn.Linear(4, 16)
        self.post_init()

"""


def save_small_model(folder: Path, sample: str = "llama") -> Path:
    """Save a small model in Hugging Face layout."""
    load_model(ModelRequest(sample=SAMPLES[sample])).model.save_pretrained(folder)
    return folder


def own_model(folder: Path, forward: str) -> Path:
    """A model with custom code (an embedding, a head and this forward), for `--random-weights`."""
    folder.mkdir()
    (folder / "own.py").write_text(OWN + forward)
    automatic = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForCausalLM": "own.OwnModel"}
    config = {"model_type": "own", "architectures": ["OwnModel"], "vocab_size": 16, "auto_map": automatic}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def assert_refused(done: Result, here: Path, status: int, code: str, words: str) -> None:
    """Check that the error is reported with its code and these words, and that no files are left."""
    assert done.status == status, done.err
    assert code in done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert list(here.iterdir()) == []
