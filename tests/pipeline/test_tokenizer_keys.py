"""An artifact accepts the output of the model's tokenizer, with and without the keys that the model defaults.

The artifact is made from texts of the tokenizer, or from random inputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer, DistilBertConfig, DistilBertModel

import thunder_core as thunder
from thunder_core.foundation.errors import WrongInputs
from thunder_core.workflow.models.inputs.tokenizer_inputs import returned_names, tokenizer_inputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.validate import validate_artifact

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(59)))
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A BERT with a tokenizer, and a file of texts."""
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
    """An artifact made from the texts."""
    out, data = tmp_path_factory.mktemp("out") / "bert.thunder", folder / "texts.jsonl"
    without = ("inductor",)
    model = ModelRequest(model=str(folder))
    return optimize(Request(model=model, input=data, inputs=1, benchmark=False, out=out, without=without)).artifact


def test_tokenizer_output_is_served_with_and_without_defaulted_keys(folder, artifact):
    read, eager = BertTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    tokens = dict(read("w10 w11 w12", return_tensors="pt"))
    assert "token_type_ids" in tokens
    loaded = thunder.load(artifact, strict=True)
    for left_out in ((), ("token_type_ids",)):
        inputs = {name: value for name, value in tokens.items() if name not in left_out}
        with torch.no_grad():
            torch.testing.assert_close(loaded(**inputs)[0], eager(**inputs)[0])


def test_a_key_that_no_program_takes_is_named(artifact, folder):
    given = dict(BertTokenizer.from_pretrained(folder)("w10 w11 w12", return_tensors="pt"))
    with torch.no_grad(), pytest.raises(WrongInputs, match=r"a dict with the keys \[.*'position_ids'\]"):
        thunder.load(artifact, strict=True)(**given, position_ids=torch.arange(5)[None])


def test_artifact_is_validated_on_random_inputs_and_on_texts(artifact, folder):
    assert validate_artifact(artifact, ValidateRequest(inputs=1)).validation.passed
    assert validate_artifact(artifact, ValidateRequest(inputs=1, input=folder / "texts.jsonl")).validation.passed


def test_the_report_lists_the_programs(artifact):
    notes = json.loads((artifact / "report.json").read_text())["model"]["notes"]
    assert "2 programs serve calls with and without token_type_ids" in notes


def strict_artifact(folder: Path, out: Path, **options: object) -> Path:
    """An artifact made from random inputs of five tokens."""
    chosen = {"seq": 5, "inputs": 1, "benchmark": False, "without": ("inductor",), **options}
    return optimize(Request(model=ModelRequest(model=str(folder)), out=out, **chosen)).artifact


@pytest.fixture(scope="module")
def drawn(folder, tmp_path_factory) -> Path:
    """An artifact made from random inputs."""
    return strict_artifact(folder, tmp_path_factory.mktemp("out") / "drawn.thunder", include_weights=True)


def test_an_artifact_of_random_inputs_accepts_the_tokenizers_output(folder, drawn):
    read, eager = BertTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    loaded, texts = thunder.load(drawn, strict=True), ("w10 w11 w12", "w3 w4 w5")
    with torch.no_grad():
        for text in texts:
            given = read(text, return_tensors="pt")
            torch.testing.assert_close(loaded(**given)[0], eager(**given)[0])
        pair = dict(read("w3", "w4", return_tensors="pt"))  # the second text has the token type 1
        assert pair["token_type_ids"].any()
        torch.testing.assert_close(loaded(**pair)[0], eager(**pair)[0])
        del pair["token_type_ids"]
        torch.testing.assert_close(loaded(**pair)[0], eager(**pair)[0])
    assert thunder.cache_misses(loaded) == 0


def test_programs_with_and_without_token_types_are_both_validated(drawn, folder):
    report = json.loads((drawn / "report.json").read_text())
    assert "2 programs serve calls with and without token_type_ids" in report["model"]["notes"]
    assert report["validation"]["inputs"] == 2
    assert validate_artifact(drawn, ValidateRequest(inputs=1)).validation.inputs == 2
    (folder / "tokenizer_config.json").rename(folder / "gone.json")  # the tokenizer is removed
    (folder / "tokenizer.json").rename(folder / "gone_too.json")
    (folder / "vocab.txt").rename(folder / "vocabulary.txt")
    try:
        assert validate_artifact(drawn, ValidateRequest(inputs=1)).validation.inputs == 1
    finally:
        (folder / "gone.json").rename(folder / "tokenizer_config.json")
        (folder / "gone_too.json").rename(folder / "tokenizer.json")
        (folder / "vocabulary.txt").rename(folder / "vocab.txt")


def test_ranges_of_sizes_apply_to_the_tokenizers_output(folder, tmp_path):
    out = strict_artifact(folder, tmp_path / "any.thunder", dynamic={"seq": (2, 32), "batch": (1, 4)})
    read, eager = BertTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    loaded = thunder.load(out, strict=True)
    told = json.loads((out / "report.json").read_text())["model"]["notes"]
    assert any("with and without token_type_ids" in note for note in told)
    with torch.no_grad():
        for texts in (["w1"], ["w1 w2 w3 w4 w5", "w6"], ["w1"] * 4, ["w1 w2 " * 15]):
            given = dict(read(texts, return_tensors="pt", padding=True))
            for left_out in ((), ("token_type_ids",)):
                inputs = {name: value for name, value in given.items() if name not in left_out}
                torch.testing.assert_close(loaded(**inputs)[0], eager(**inputs)[0])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            lambda: BertModel(BertConfig(**SIZES, vocab_size=len(WORDS), type_vocab_size=1)),
            ("input_ids", "token_type_ids", "attention_mask"),
        ),
        (lambda: DistilBertModel(DistilBertConfig(dim=16, hidden_dim=32, n_heads=2, n_layers=1, vocab_size=64)), ()),
    ],
    ids=["one token type", "takes none"],
)
def test_tokenizer_inputs_are_added_if_the_model_accepts_them(folder, tmp_path, make, names):
    make().save_pretrained(tmp_path)
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    loaded = load_model(ModelRequest(model=str(tmp_path)))
    assert returned_names(loaded) == names
    ids = torch.arange(8)[None]
    added = tokenizer_inputs(loaded, {"input_ids": ids, "attention_mask": ids, "labels": ids}, names)
    assert (added is None) == (not names)
    if added is not None:
        assert (*added,) == (*names, "labels")
        assert not added["token_type_ids"].any()
    assert tokenizer_inputs(loaded, {"pixel_values": ids}, ("token_type_ids",)) is None


def test_a_tokenizer_that_is_damaged_is_no_error_of_random_inputs(folder, tmp_path):
    BertModel(BertConfig(**SIZES, vocab_size=len(WORDS))).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    assert returned_names(load_model(ModelRequest(model=str(tmp_path)))) == ()
