"""An artifact of a tokenizer's own texts takes what the tokenizer returns, with and without what models default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

import thunder_core as thunder
from thunder_core.foundation.errors import WrongInputs
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.validate import validate_artifact

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(59)))
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A BERT with its tokenizer, and texts."""
    place = tmp_path_factory.mktemp("bert")
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    torch.manual_seed(0)
    BertModel(BertConfig(**SIZES, vocab_size=len(WORDS))).save_pretrained(place)
    BertTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    rows = ("w1 w2 w3", "w4 w5 w6", "w7 w8 w9")
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return place


@pytest.fixture(scope="module")
def artifact(folder, tmp_path_factory) -> Path:
    """An artifact of the texts."""
    out, data = tmp_path_factory.mktemp("out") / "bert.thunder", folder / "texts.jsonl"
    without = ("inductor",)
    model = ModelRequest(model=str(folder))
    return optimize(Request(model=model, input=data, inputs=1, benchmark=False, out=out, without=without)).artifact


def test_what_a_tokenizer_returns_is_served_as_it_is_and_without_what_the_model_defaults(folder, artifact):
    read, eager = BertTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    given = dict(read("w10 w11 w12", return_tensors="pt"))
    assert "token_type_ids" in given
    loaded = thunder.load(artifact, strict=True)
    for left_out in ((), ("token_type_ids",)):
        inputs = {name: value for name, value in given.items() if name not in left_out}
        with torch.no_grad():
            torch.testing.assert_close(loaded(**inputs)[0], eager(**inputs)[0])


def test_a_key_that_no_program_takes_is_named(artifact, folder):
    given = dict(BertTokenizer.from_pretrained(folder)("w10 w11 w12", return_tensors="pt"))
    with torch.no_grad(), pytest.raises(WrongInputs, match=r"a dict with the keys \[.*'position_ids'\]"):
        thunder.load(artifact, strict=True)(**given, position_ids=torch.arange(5)[None])


def test_it_is_validated_on_drawn_inputs_and_on_texts(artifact, folder):
    assert validate_artifact(artifact, inputs=1).validation.passed
    assert validate_artifact(artifact, inputs=1, input=folder / "texts.jsonl").validation.passed


def test_the_report_tells_of_the_programs(artifact):
    told = json.loads((artifact / "report.json").read_text())["model"]["notes"]
    assert "2 programs serve calls with and without token_type_ids" in told
