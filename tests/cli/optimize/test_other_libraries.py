"""The examples of docs/other_libraries.md: the commands and programs of each section run, in the order of the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

import thunder_core
from tests.cli.small import Result
from tests.models.diffusion_models import MODELS, conditional_unet
from tests.models.sentence_folders import WIDTH, write_sentence_folder
from tests.readme import ROOT
from thunder_core.workflow.artifact.replay import example_of

PAGE = ROOT / "docs" / "other_libraries.md"
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Thunder = Callable[..., Result]


def blocks_of(title: str) -> Iterator[tuple[str, str]]:
    """Yield the languages and texts of the examples in a section."""
    sections = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
    yield from BLOCK.findall(sections[title])


def follow(title: str, thunder: Thunder) -> dict[str, Any]:
    """Run the examples of a section; return the variables of its programs."""
    variables: dict[str, Any] = {}
    for language, text in blocks_of(title):
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), variables)
            continue
        for command in re.findall(r"^\$ thunder (.*)$", text, re.MULTILINE):
            done = thunder(*shlex.split(command), *(("--no-benchmark",) if command.startswith("optimize") else ()))
            assert done.status == 0, done.err
    return variables


@pytest.fixture
def sentences(here: Path, thunder: Thunder) -> Path:
    stages = [("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}), ("Normalize", {})]
    return write_sentence_folder(here / "all-MiniLM-L6-v2", stages)


def test_sentence_embeddings_of_the_artifact_match_the_formula(thunder, sentences):
    found = follow("sentence-transformers", thunder)
    mask = found["inputs"]["attention_mask"].unsqueeze(-1)
    with torch.no_grad():
        tokens = AutoModel.from_pretrained(sentences)(found["inputs"]["input_ids"], mask.squeeze(-1))[0]
    expected = torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1))
    torch.testing.assert_close(found["embeddings"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by a former name
def test_merged_adapter_is_loaded_without_its_base_model(thunder, here, llama):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    base: Any = AutoModelForCausalLM.from_pretrained(llama)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(base, settings).eval()
    adapted.save_pretrained(here / "llama-lora")
    plan = thunder("optimize", "llama-lora", "--dry-run", "--seq", 16)
    assert "is merged into" in " ".join((plan.err + plan.out).split())
    found = follow("PEFT", thunder)
    ids = found["ids"]
    kept = thunder_core.load("kept.thunder", strict=True)
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        of_kept = kept(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(found["logits"], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_kept, expected, rtol=1e-4, atol=1e-5)


def test_architecture_of_timm_is_optimized(thunder):
    pytest.importorskip("timm", reason="needs the package timm")
    assert follow("timm", thunder)["logits"].shape == (1, 1000)


def test_denoiser_of_a_pipeline_is_optimized(thunder, here):
    pytest.importorskip("diffusers", reason="needs the package diffusers")
    theirs = conditional_unet()
    theirs.save_pretrained(here / "tiny-pipeline" / "unet")
    (here / "tiny-pipeline" / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    noise = follow("diffusers", thunder)["noise"]
    with torch.no_grad():
        expected = theirs(torch.zeros(1, 4, 8, 8), torch.tensor([7]), torch.zeros(1, 8, 32)).sample
    torch.testing.assert_close(noise, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sd3", "flux", "guided flux"])
def test_transformer_of_a_pipeline_is_optimized(thunder, here, name):
    pytest.importorskip("diffusers", reason="needs the package diffusers")
    theirs = MODELS[name]()
    theirs.save_pretrained(here / "tiny-pipeline" / "transformer")
    (here / "tiny-pipeline" / "model_index.json").write_text('{"_class_name": "Pipeline"}')
    done = thunder("optimize", "tiny-pipeline", "--batch", 2, "--seq", 5, "--no-benchmark", "--out", "made")
    assert done.status == 0, done.err
    inputs = example_of("made")
    with torch.no_grad():
        found = thunder_core.load("made", strict=True)(**inputs).sample
        torch.testing.assert_close(found, theirs(**inputs).sample, rtol=1e-4, atol=1e-5)


def test_plan_names_the_task_and_the_left_out_stages(thunder, sentences):
    plan = thunder("optimize", sentences, "--dry-run", "--seq", 16)
    assert "sentence-similarity" in plan.err + plan.out
    other = thunder("optimize", sentences, "--dry-run", "--seq", 16, "--task", "feature-extraction")
    assert "left out" in " ".join((other.err + other.out).split())


@pytest.mark.parametrize("outputs", ["tuple", "dict"])
def test_kind_of_outputs_of_sentences(thunder, sentences, outputs):
    done = thunder(
        *("optimize", sentences, "--outputs", outputs, "--include-weights", "--seq", 8, "--no-benchmark"),
        *("--out", "kept"),
    )
    assert done.status == 0, done.err
    ids = torch.full((1, 8), 5)
    with torch.no_grad():
        output = thunder_core.load("kept", strict=True)(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert (type(output) is tuple) == (outputs == "tuple")
    assert output[0].shape == (1, WIDTH)


def test_pairs_are_trained_in_batches_of_several(thunder, sentences):
    refused = thunder("optimize", sentences, "--train", "--seq", 8, "--batch", 1, "--dry-run")
    assert (refused.status, "--batch 2 or more" in refused.err) == (2, True)
