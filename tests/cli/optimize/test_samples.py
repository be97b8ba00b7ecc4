"""Real samples are traced, validated, measured, and evaluated by a metric before and after."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch

from tests.cli.small import QUICK, assert_refused, save_small_model
from tests.models.real import write_lines, write_tokenizer
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest

pytestmark = pytest.mark.usefixtures("without_kernels")  # except for models that module fixtures make

ROUNDS = QUICK[2:]
HEAD = ("--allow-random-weights", "score")
TEXTS = ("the cat saw a dog", "a red dog saw the cat", "the dog", "a cat saw the red cat", "the red dog saw a cat")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A small Llama with a tokenizer in its folder."""
    folder = save_small_model(tmp_path_factory.mktemp("models") / "speaker")
    write_tokenizer(folder)
    return folder


@pytest.fixture
def texts(here):
    return write_lines(here / "texts.jsonl", *({"text": text} for text in TEXTS))


def test_optimize_validates_and_evaluates_on_texts(thunder, here, speaker, texts):
    run = ("optimize", speaker, "-r", "hf-llama", "--input", texts, "--batch", 2, *ROUNDS)
    done = thunder(*run, "--eval", texts, "--out", "result")
    assert done.status == 0, done.err
    output = " ".join(done.err.split())
    assert "batch 2, sequence 6, 5 samples from texts.jsonl" in output
    assert "perplexity before and after, on 5 samples from texts.jsonl" in output
    assert "evaluate" in done.err
    assert "Evaluation  20 labels of 5 samples, texts.jsonl:" in done.out
    report = json.loads((here / "result" / "report.json").read_text())
    assert report["validation"]["inputs"] == 1  # the second of two whole batches
    assert report["benchmark"]["configuration"]["input"].startswith("texts.jsonl:")
    assert report["evaluation"]["before"] == pytest.approx(perplexity_of(speaker), rel=1e-5)
    assert report["evaluation"]["after"] == pytest.approx(report["evaluation"]["before"], rel=1e-5)
    assert all("## Evaluation" in (here / "result" / page).read_text() for page in ("report.md",))
    assert open_artifact(here / "result").manifest.random_inputs == {"batch": 2, "seq": 6, "seed": 0}
    checked = thunder("validate", "result", "--input", texts, "--eval", texts, "--json", "--quiet").json
    assert checked["validation"]["inputs"] == 2
    assert checked["evaluation"]["before"] == pytest.approx(report["evaluation"]["before"])
    assert thunder("validate", "result", "--quiet").status == 0  # on random inputs of the same shapes
    longer = write_lines(here / "longer.jsonl", *({"text": f"{text} and more of it"} for text in TEXTS))
    notes = thunder("validate", "result", "--input", longer, "--json", "--quiet").json["validation"]["notes"]
    assert notes == ["4 of the 5 samples of longer.jsonl were truncated to the artifact's 6 tokens"]
    measured = thunder("bench", "result", "--input", texts, "--batch", "2", *ROUNDS, "--json").json["reports"][0]
    assert (measured["configuration"]["seq"], measured["configuration"]["batch"]) == ("6", "2")
    assert measured["configuration"]["input"] == report["benchmark"]["configuration"]["input"]


def perplexity_of(folder):
    """The perplexity of the texts, computed one by one without padding."""
    from transformers import AutoTokenizer

    loaded = load_model(ModelRequest(str(folder)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    total = counted = 0
    for text in TEXTS:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            total += loaded.model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        counted += ids.shape[1] - 1
    return math.exp(total / counted)


def test_accuracy_on_images(thunder, here, tmp_path):
    folder = save_small_model(tmp_path / "vit", "vit")
    pixels = np.random.default_rng(0).standard_normal((5, 3, 32, 32)).astype(np.float32)
    loaded = load_model(ModelRequest(str(folder)))
    with torch.no_grad():
        classes = loaded.model(pixel_values=torch.from_numpy(pixels)).logits.argmax(-1).numpy()
    classes[0] = (classes[0] + 1) % 10
    np.savez(here / "images.npz", pixel_values=pixels, labels=classes)
    run = ("optimize", folder, "--eval", "images.npz", "--batch", 2, "--no-benchmark", "--no-validate", "--json")
    found = thunder(*run, "--out", "result").json["report"]["evaluation"]
    assert (found["metric"], found["before"], found["after"], found["counted"]) == ("accuracy", 0.8, 0.8, 5)
    cosine = thunder("validate", "result", "--eval", "images.npz", "--metric", "cosine", "--json", "--quiet").json
    assert cosine["evaluation"]["after"] == pytest.approx(1.0)


def test_a_step_of_training_on_real_samples(thunder, here, speaker, texts):
    run = ("optimize", speaker, "-r", "hf-llama", "--train", "--input", texts, "--batch", 2, "--seq", 4)
    done = thunder(*run, "--no-benchmark", "--out", "result", "--json")
    assert done.status == 0, done.err
    assert any("5 samples from texts.jsonl, 4 truncated, with labels" in line for line in done.json["report"]["plan"])
    refused = thunder(*run, "--eval", texts, "--out", "other")
    assert (refused.status, "--eval and --train exclude each other" in refused.err) == (2, True)


def test_a_single_batch_is_validated_on_itself_with_a_note(thunder, here, speaker):
    write_lines(here / "one.jsonl", {"input_ids": [3, 4, 5, 6], "position_ids": [0, 1, 2, 3]})
    run = ("optimize", speaker, "-r", "hf-llama", "--input", "one.jsonl", "--no-benchmark", "--out", "result")
    done = thunder(*run)
    note = "the file of inputs has one batch, which was also traced: there were no other inputs to validate on"
    assert note in " ".join(done.out.split())
    assert "not traced" not in done.out
    assert json.loads((here / "result" / "report.json").read_text())["validation"]["notes"][0] == note
    assert open_artifact(here / "result").manifest.random_inputs == {}  # random inputs have no position_ids
    done = thunder("validate", "result", "--quiet")
    assert (done.status, "--input" in done.err) == (2, True)
    assert thunder("validate", "result", "--input", "one.jsonl", "--quiet").status == 0


BAD = {
    "no file": (("--input", "none.jsonl"), "TH0221", "none.jsonl does not exist"),
    "another kind": (("--eval", "x.csv"), "TH0221", ".safetensors"),
    "no such metric": (("--eval", "good.jsonl", "--metric", "bleu"), "TH0202", "perplexity"),
    "a metric of nothing": (("--metric", "accuracy"), "TH0201", "--eval"),
    "damaged": (("--input", "bad.jsonl"), "TH0221", "line 1 is not JSON"),
    "for another model": (("--input", "other.jsonl"), "TH0221", "`pixel_values`"),
    "longer than the model": (("--input", "long.jsonl"), "TH0209", "256"),
    "no labels": (
        ("--eval", "good.jsonl", "--metric", "accuracy", "--task", "sequence-classification", *HEAD),
        "TH0221",
        "labels",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_samples_leave_nothing(thunder, speaker, tmp_path, here, monkeypatch, case):
    options, code, words = BAD[case]
    (tmp_path / "bad.jsonl").write_text("{")
    write_lines(tmp_path / "good.jsonl", {"input_ids": [3, 4]})
    write_lines(tmp_path / "other.jsonl", {"input_ids": [3, 4], "pixel_values": [0.0, 1.0, 2.0]})
    write_lines(tmp_path / "long.jsonl", {"input_ids": [3] * 300})
    options = [str(tmp_path / word) if word.endswith((".jsonl", ".csv")) else word for word in options]
    recipe = () if "--task" in options else ("-r", "hf-llama")
    assert_refused(
        thunder("optimize", speaker, *recipe, *options, "--out", "result", *ROUNDS, "--quiet"), here, 2, code, words
    )


def test_a_file_that_changes_is_another_input(thunder, here, speaker, texts):
    run = ("bench", speaker, "-r", "hf-llama", "--input", texts, *ROUNDS)
    assert thunder(*run, "--out", "baseline.json").status == 0
    shutil.copy(texts, here / "kept.jsonl")
    write_lines(texts, *({"text": text} for text in reversed(TEXTS)))
    done = thunder(*run, "--baseline", "baseline.json")
    assert (done.status, "input=texts.jsonl:" in done.err) == (2, True)
