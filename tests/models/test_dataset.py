"""Files of samples are read as a whole; damaged samples, invalid samples and samples for another model are reported
with their position.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.models.real import FIRST_WORD, write_lines, write_tokenizer
from thunder_core.foundation.errors import BadData, OutOfMemory, ThunderError
from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin
from thunder_core.workflow.models.inputs import dataset
from thunder_core.workflow.models.inputs.batches import Batches, longer_than, token_length
from thunder_core.workflow.models.inputs.dataset import read_dataset
from thunder_core.workflow.models.inputs.decoder_tokens import decoder_tokens
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.inputs.tokens import tokenize
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES

IDS = torch.tensor([[3, 4, 5], [6, 7, 8], [9, 10, 11]])


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model(ModelRequest(sample=SAMPLES["llama"]))


@pytest.fixture(scope="module")
def vit() -> LoadedModel:
    return load_model(ModelRequest(sample=SAMPLES["vit"]))


@pytest.fixture(scope="module")
def t5() -> LoadedModel:
    return load_model(ModelRequest(sample=SAMPLES["t5"]))


SPOKEN = {"input_ids": [5, 6, 7], "labels": [9, 8, 1]}, {"input_ids": [7], "labels": [4, 1]}


def test_a_decoders_tokens_follow_from_labels_as_in_the_models_forward(t5: LoadedModel, tmp_path: Path) -> None:
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", *SPOKEN))
    given = Batches(t5, data, 2, 4)[0]
    assert {name: value.tolist() for name, value in given.items()} == {
        "input_ids": [[5, 6, 7, 0], [7, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "decoder_input_ids": [[0, 9, 8], [0, 4, 1]],
    }
    labelled = Batches(t5, data, 2, 4, labels=True)[0]
    assert labelled["labels"].tolist() == [[9, 8, 1], [4, 1, -100]]
    with torch.no_grad():
        derived = t5.model(**{name: value for name, value in labelled.items() if name != "decoder_input_ids"})
        torch.testing.assert_close(t5.model(**labelled).loss, derived.loss, rtol=0, atol=0)
        torch.testing.assert_close(t5.model(**given).logits, derived.logits, rtol=0, atol=0)


def test_a_class_that_does_not_say_how_shifts_its_labels(t5: LoadedModel) -> None:
    draw = RandomInputs.from_seed(t5.config, batch=1, seq=4, seed=0)
    labels = torch.tensor([[9, 8, 1], [4, -100, -100]])
    shifted = decoder_tokens(torch.nn.Identity(), labels, draw)
    assert shifted.tolist() == [[0, 9, 8], [0, 4, 0]]
    assert torch.equal(shifted, decoder_tokens(t5.model, labels, draw))


def test_a_decoders_own_tokens_are_padded_to_the_longest(t5: LoadedModel, tmp_path: Path) -> None:
    samples = {"input_ids": [5, 6], "decoder_input_ids": [0, 3]}, {"input_ids": [7, 8], "decoder_input_ids": [0]}
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", *samples))
    assert Batches(t5, data, 2, 4)[0]["decoder_input_ids"].tolist() == [[0, 3], [0, 0]]


def test_an_error_for_missing_decoder_tokens_names_their_source(t5: LoadedModel, tmp_path: Path) -> None:
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", {"input_ids": [5, 6, 7]}))
    with pytest.raises(BadData, match="`decoder_input_ids`, which it needs") as refused:
        Batches(t5, data, 1, 4)
    assert "add `decoder_input_ids`, or the `labels` that they follow from" in refused.value.fix


def test_three_kinds_of_files_hold_the_same_samples(tmp_path: Path) -> None:
    save_file({"input_ids": IDS}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", input_ids=IDS.numpy().astype(np.uint16))
    write_lines(tmp_path / "a.jsonl", *({"input_ids": row} for row in IDS.tolist()))
    for name in ("a.safetensors", "a.npz", "a.jsonl"):
        data = read_dataset("--input", tmp_path / name)
        assert (len(data), token_length(data), longer_than(data, 2)) == (3, 3, 3)
        assert torch.equal(torch.stack([row["input_ids"] for row in data.rows]).long(), IDS)
        assert data.name.startswith(f"{name}:")


def test_tokens_are_padded_and_what_is_no_token_is_stacked(llama: LoadedModel, tmp_path: Path) -> None:
    samples = {"input_ids": [5, 6]}, {"input_ids": [7, 8, 9, 10]}, {"input_ids": [11]}
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", *samples))
    batches = Batches(llama, data, 2, 5)
    assert len(batches) == 1
    first = batches[0]
    assert first["input_ids"].tolist() == [[5, 6, 0, 0, 0], [7, 8, 9, 10, 0]]
    assert first["attention_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]
    assert first["input_ids"].dtype == torch.int64
    assert torch.equal(batches[7]["input_ids"], first["input_ids"])  # they begin anew
    labelled = Batches(llama, data, 2, 5, labels=True)[0]["labels"]
    assert labelled.tolist() == [[5, 6, -100, -100, -100], [7, 8, 9, 10, -100]]
    assert batches.labels_of([2]).tolist() == [[11, -100, -100, -100, -100]]


def test_a_requested_length_truncates_and_no_length_refuses(llama: LoadedModel, tmp_path: Path) -> None:
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", {"input_ids": [5, 6, 7]}, {"input_ids": [8]}))
    assert Batches(llama, data, 2, 2, cut=True)[0]["input_ids"].tolist() == [[5, 6], [8, 0]]
    with pytest.raises(BadData, match="line 1: 3 tokens, more than 2") as caught:
        Batches(llama, data, 2, 2)
    assert "--seq, up to 256" in caught.value.fix


def test_numbers_are_of_the_models_dtype(vit: LoadedModel, tmp_path: Path) -> None:
    pixels = np.zeros((2, 3, 32, 32), dtype=np.float64)
    np.savez(tmp_path / "a.npz", pixel_values=pixels, labels=np.array([1, 9]))
    batches = Batches(vit, read_dataset("--input", tmp_path / "a.npz"), 2, 128)
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in batches[0].items()} == {
        "pixel_values": (torch.float32, [2, 3, 32, 32])
    }
    assert batches.labels_of([0, 1]).tolist() == [1, 9]


def test_labels_of_answers_are_their_first_and_last_tokens(tmp_path: Path) -> None:
    bert = load_model(ModelRequest(sample=SampleModel("BertForQuestionAnswering", SAMPLES["bert"].config)))
    rows = [{"input_ids": [5, 6, 7], "start_positions": 1, "end_positions": 2}] * 2
    batches = Batches(bert, read_dataset("--eval", write_lines(tmp_path / "a.jsonl", *rows)), 2, 4)
    assert batches.labels_of([0, 1]).tolist() == [[1, 2], [1, 2]]
    assert batches[0].keys() == {"input_ids", "attention_mask"}


def test_pixels_without_a_class_are_ignored(tmp_path: Path) -> None:
    stages = {"hidden_sizes": [16, 16, 16, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
    model = SampleModel("SegformerForSemanticSegmentation", {**stages, "decoder_hidden_size": 16, "num_labels": 3})
    labels = np.array([[[0, 255], [2, 1]]])
    np.savez(tmp_path / "a.npz", pixel_values=np.zeros((1, 3, 32, 32), np.float32), labels=labels)
    batches = Batches(load_model(ModelRequest(sample=model)), read_dataset("--eval", tmp_path / "a.npz"), 1, 4)
    assert batches.labels_of([0]).tolist() == [[[0, -100], [2, 1]]]


def test_texts_are_read_by_the_tokenizer_next_to_the_model(llama: LoadedModel, tmp_path: Path) -> None:
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", {"text": "the cat"}, {"text": "a strange dog"}))
    with pytest.raises(BadData, match="the model's folder has no tokenizer"):
        tokenize(data, SampleOrigin(SAMPLES["llama"]))
    with pytest.raises(BadData, match="the model's folder has no tokenizer"):
        tokenize(data, FolderOrigin(tmp_path))
    write_tokenizer(tmp_path)
    told = tokenize(data, FolderOrigin(tmp_path))
    assert [row["input_ids"].tolist() for row in told.rows] == [
        [FIRST_WORD, FIRST_WORD + 1],
        [FIRST_WORD + 3, 1, FIRST_WORD + 5],
    ]
    assert len(Batches(llama, told, 2, 3)) == 1
    for samples in ([{"text": "a"}, {"input_ids": [3]}], [{"text": "a", "input_ids": [3]}]):
        mixed = read_dataset("--input", write_lines(tmp_path / "b.jsonl", *samples))
        with pytest.raises(BadData, match="line"):
            tokenize(mixed, FolderOrigin(tmp_path))


DEEP = "[" * 100_000
LINES = {
    "no JSON": ("{", "line 1 is not JSON"),
    "nested deep": (f'{{"input_ids": {DEEP}', "line 1 is not JSON"),
    "a long number": (f'{{"input_ids": [{"9" * 5001}]}}', "line 1 is not JSON"),
    "a large number": ('{"input_ids": [99999999999999999999]}', "`input_ids` is not an array of numbers"),
    "no object": ("[1]", "line 1 is not an object"),
    "nothing in it": ("{}", "line 1 is not an object"),
    "an empty text": ('{"text": ""}', "`text` is empty or not a string"),
    "no text": ('{"text": 3}', "`text` is empty or not a string"),
    "words": ('{"input_ids": ["a"]}', "`input_ids` is not an array of numbers"),
    "rows of two lengths": ('{"input_ids": [[1], [2, 3]]}', "`input_ids` is not an array of numbers"),
    "nothing": ("\n\n", "has no samples"),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_that_are_no_samples(tmp_path: Path, case: str) -> None:
    text, words = LINES[case]
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(BadData, match=words) as caught:
        read_dataset("--input", tmp_path / "a.jsonl")
    assert (caught.value.code, caught.value.status) == ("TH0221", 2)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "a.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "a.npz").write_bytes(b"PK no archive")
    (tmp_path / "folder.npz").mkdir()
    np.savez(tmp_path / "objects.npz", input_ids=np.array([{}], dtype=object))
    np.savez(tmp_path / "words.npz", input_ids=np.array(["a"]))
    np.savez(tmp_path / "sizes.npz", input_ids=np.zeros((2, 3), dtype=int), labels=np.zeros(3, dtype=int))
    np.savez(tmp_path / "none.npz")
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("notes.txt", "no array")
    for name in (
        "a.jsonl",
        "a.safetensors",
        "a.npz",
        "folder.npz",
        "objects.npz",
        "words.npz",
        "sizes.npz",
        "none.npz",
        "texts.npz",
    ):
        with pytest.raises(BadData):
            read_dataset("--input", tmp_path / name)
    for name in ("nowhere.jsonl", "a.csv"):
        with pytest.raises(BadData, match=f"--eval .*{name}"):
            read_dataset("--eval", tmp_path / name)
    monkeypatch.setattr(dataset, "free_memory", lambda device: 10)
    with pytest.raises(OutOfMemory):
        read_dataset("--input", tmp_path / "sizes.npz")


UNFIT: dict[str, tuple[list[dict[str, object]], str]] = {
    "another name": ([{"input_ids": [3], "tokens": [3]}], "`tokens`, which it does not accept"),
    "no tokens": ([{"attention_mask": [1]}], "`input_ids`, which it needs"),
    "beyond the vocabulary": ([{"input_ids": [3]}, {"input_ids": [512]}], "line 2: `input_ids` has the token 512"),
    "a negative token": ([{"input_ids": [-1]}], "has the token -1"),
    "fractions": ([{"input_ids": [0.5]}], "has the dtype torch.float32"),
    "no token": ([{"input_ids": []}], "line 1"),
    "one number": ([{"input_ids": 3}], "tokens are lists of integers"),
    "names that come and go": ([{"input_ids": [3]}, {"input_ids": [3], "labels": [3]}], "line 2: has other names"),
    "another shape": ([{"input_ids": [3], "labels": 1}, {"input_ids": [3, 4], "labels": [1, 2, 3]}], "is of shape"),
    "a mask of another length": (
        [{"input_ids": [3, 4, 5], "attention_mask": [1, 1, 1]}, {"input_ids": [3, 4, 5, 6], "attention_mask": [1, 1]}],
        "line 2: `attention_mask` is of shape",
    ),
    "rows of choices": (
        [{"input_ids": [[3, 4], [5, 6]]}, {"input_ids": [[3], [4]]}],
        "line 1: `input_ids` has the shape",
    ),
    "a label that is none": ([{"input_ids": [3, 4], "labels": [3, 999]}], "`labels` has 999"),
    "too few": ([], "has 1 samples, but a batch has 2"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_samples_that_the_model_does_not_take(llama: LoadedModel, tmp_path: Path, case: str) -> None:
    samples, words = UNFIT[case]
    data = read_dataset("--input", write_lines(tmp_path / "a.jsonl", *(samples or [{"input_ids": [3]}])))
    with pytest.raises(ThunderError, match=words) as caught:
        Batches(llama, data, 1 if samples else 2, 8)
    assert isinstance(caught.value, BadData)


def test_pixels_are_floating_numbers_and_no_nan(vit: LoadedModel, tmp_path: Path) -> None:
    for name, pixels in (("whole", np.zeros((1, 3, 32, 32), dtype=int)), ("nan", np.full((1, 3, 32, 32), np.nan))):
        np.savez(tmp_path / f"{name}.npz", pixel_values=pixels)
        with pytest.raises(BadData, match="sample 0: `pixel_values`"):
            Batches(vit, read_dataset("--input", tmp_path / f"{name}.npz"), 1, 8)
