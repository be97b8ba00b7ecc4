"""`--task generate`: the programs that `generate` calls are validated by tokens and saved in artifacts."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import StaticCache

import thunder_core as thunder
from tests.generation.models import Uncompiled
from tests.pipeline.conftest import quick
from tests.pipeline.test_dynamic import python_path
from tests.processes import run_python
from thunder_cli.views.outcome import outcome_view
from thunder_core.foundation.errors import (
    BadOption,
    CannotGenerate,
    RangeNotServed,
    SequenceTooLong,
    ThunderError,
    WrongInputs,
)
from thunder_core.foundation.options.generation_lengths import GenerationLengths, Prompts
from thunder_core.passes.recipe import Transform
from thunder_core.passes.transforms.static_cache import GenerateWithStaticCache
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.format.report import read_report
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, optimize, plan
from thunder_core.workflow.pipeline.bench import bench_artifact
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.validate import validate_artifact
from thunder_core.workflow.validation.report import GenerationReport
from thunder_recipes.hf_generate import HFGenerate

LENGTHS = {"prompt_length": 9, "new_tokens": 7, "batch": 3, "runs": 2, "warmup": 0}


def request_of(out: Path | None, sample: str = "llama", recipe: object = Uncompiled, **changes: Any) -> Request:
    """A request for generation of a small model."""
    model = ModelRequest(sample=SAMPLES[sample], task="generate")
    return Request(recipe=recipe, model=model, out=out, **{**LENGTHS, **changes})


def continue_prompts(
    model: Any, batch: int, length: int, new: int = 7, padding: int = 0, **options: Any
) -> torch.Tensor:
    """The continuations of prompts. Each prompt except the first begins with a number of padding tokens."""
    ids = torch.arange(3, 3 + batch * length).reshape(batch, length)
    mask = torch.ones_like(ids)
    ids[1:, :padding] = mask[1:, :padding] = 0
    torch.manual_seed(5)
    usual = {"attention_mask": mask, "max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, **usual | options)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a small Llama that generates, with weights."""
    folder = tmp_path_factory.mktemp("generating") / "small.thunder"
    optimize(request_of(folder, include_weights=True))
    return folder


@pytest.fixture(scope="module")
def pair(artifact: Path) -> tuple[Any, Any]:
    """The loaded artifact, which traces nothing, and the eager model."""
    return thunder.load(artifact, strict=True), thunder.load(artifact)._thunder.subject


MODES: dict[str, dict[str, Any]] = {
    "one token": {"batch": 1, "length": 1},
    "the longest": {"batch": 1, "length": 9},
    "the largest": {"batch": 3, "length": 9},
    "two": {"batch": 2, "length": 4},
    "several of one token": {"batch": 3, "length": 1},
    "padded": {"batch": 3, "length": 9, "padding": 4},
    "padded to two tokens": {"batch": 2, "length": 2, "padding": 1},
    "one new token": {"batch": 1, "length": 5, "new": 1},
    "sampled": {"batch": 3, "length": 6, "do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 30},
    "sampled and padded": {"batch": 2, "length": 6, "padding": 2, "do_sample": True},
    "beams": {"batch": 1, "length": 6, "num_beams": 3},
}


@pytest.mark.parametrize("name", MODES)
def test_an_artifact_generates_by_the_librarys_own_generate(name: str, pair: tuple[Any, Any]) -> None:
    loaded, eager = pair
    assert torch.equal(continue_prompts(loaded, **MODES[name]), continue_prompts(eager, **MODES[name]))


OUTSIDE: dict[str, dict[str, Any]] = {
    "a longer prompt": {"batch": 1, "length": 10},
    "more new tokens": {"batch": 1, "length": 9, "new": 9},
    "a larger batch": {"batch": 4, "length": 2},
    "another cache": {"batch": 1, "length": 4, "cache_implementation": "static"},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_calls_outside_of_the_lengths_are_refused_with_advice(name: str, pair: tuple[Any, Any]) -> None:
    said = "generates for batches of 1 to 3 prompts of 1 to 9 tokens, and 7 new tokens"
    with pytest.raises(WrongInputs, match=said) as refused:
        continue_prompts(pair[0], **OUTSIDE[name])
    assert "larger --batch, --prompt-length or --new-tokens" in refused.value.fix


def test_few_programs_serve_all_lengths_and_the_manifest_has_these(artifact: Path) -> None:
    manifest = open_artifact(artifact).manifest
    assert manifest.generation is not None
    assert manifest.generation.lengths == GenerationLengths(9, 7, 3)
    assert (manifest.example, manifest.random_inputs, manifest.dynamic) == ((), {}, {})
    assert manifest.validation == "validated"
    # Prompts of a single text and of several, of one token, padded; later tokens, padded or not.
    assert len(manifest.programs) <= 6


def test_the_report_has_tokens_and_divergences_of_each_step(artifact: Path) -> None:
    found = json.loads((artifact / "report.json").read_text())["generation"]
    assert (found["passed"], found["exact"], found["new_tokens"]) == (True, True, 7)
    sizes = ["1 x 9", "1 x 1", "1 x 3", "3 x 3", "3 x 9, padded"]
    assert [prompt["size"] for prompt in found["prompts"]] == sizes
    for prompt in found["prompts"]:
        assert prompt["equal"] == prompt["tokens"] == 7 * int(prompt["size"][0])
        assert len(prompt["divergences"]) == 7
    for page in ("report.md", "report.html"):
        text = (artifact / page).read_text()
        assert "Validation of generation" in text and "63 of 63 greedy tokens agree with eager" in text


def test_the_terminal_shows_tokens_and_speed(artifact: Path) -> None:
    report = read_report(open_artifact(artifact))
    assert report is not None
    console = Console(width=110, file=io.StringIO())
    console.print(outcome_view(report, width=110))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("3 x 9, padded", "21 of 21", "Benchmark, 9 + 7 tokens", "first token", "programs generate: batches"):
        assert words in output


def test_generation_is_measured_alone_and_in_the_largest_batch(artifact: Path) -> None:
    found = json.loads((artifact / "report.json").read_text())["generation_benchmarks"]
    assert [
        (measured_size["configuration"]["batch"], measured_size["configuration"]["size"]) for measured_size in found
    ] == [
        ("1", "9 + 7 tokens"),
        ("3", "9 + 7 tokens"),
    ]
    assert all([text["name"] for text in measured_size["texts"]] == ["eager", "thunder"] for measured_size in found)
    assert all(text["equal"] == 1.0 for measured_size in found for text in measured_size["texts"])


def test_an_artifact_that_generates_is_validated_in_place(artifact: Path) -> None:
    before = (artifact / "manifest.json").read_bytes()
    done = validate_artifact(artifact, ValidateRequest(seed=4))
    assert (done.state, done.written) == ("validated", False)
    assert isinstance(done.validation, GenerationReport)
    assert done.validation.passed and done.validation.tokens == 63
    assert (artifact / "manifest.json").read_bytes() == before


def test_single_calls_of_an_artifact_that_generates_are_not_measured(artifact: Path) -> None:
    with pytest.raises(BadOption, match="was made for generation, but this benchmark measures single calls"):
        bench_artifact(artifact, BenchRequest(runs=2, warmup=0))


GENERATES = """
import sys, torch, thunder_core as thunder
loaded = thunder.load(sys.argv[1], strict=True)
eager = thunder.load(sys.argv[1])._thunder.subject
for length, new in ((1, 7), (2, 6), (9, 7)):
    prompt = torch.arange(3, 3 + length)[None]
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": new, "do_sample": False}
    assert torch.equal(loaded.generate(prompt, **options), eager.generate(prompt, **options))
assert "thunder_core.compilation.compiler" not in sys.modules, "something was compiled"
print("served")
"""


def test_artifact_generates_in_a_fresh_process_without_a_compiler(artifact: Path, tmp_path: Path) -> None:
    kept = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/bin"}
    places = {"THUNDER_CACHE_DIR": str(tmp_path / "cache"), "CXX": "/bin/false", "CC": "/bin/false"}
    done = run_python("-c", GENERATES, artifact, cwd=Path.cwd(), env={**kept, **places, "PYTHONPATH": python_path()})
    assert done.stdout == "served\n", done.stderr


def test_an_encoder_and_a_decoder_generate_from_an_artifact(tmp_path: Path) -> None:
    done = optimize(request_of(tmp_path / "a", "t5", include_weights=True, prompt_length=6, new_tokens=4, batch=1))
    assert done.report.generation is not None and done.report.generation.passed
    loaded = thunder.load(tmp_path / "a", strict=True)
    eager = thunder.load(tmp_path / "a")._thunder.subject
    for length in (1, 4, 6):
        assert torch.equal(continue_prompts(loaded, 1, length, 4), continue_prompts(eager, 1, length, 4)), length


REFUSED: dict[str, tuple[dict[str, Any], type[ThunderError], str]] = {
    "positions": ({"prompt_length": 250}, SequenceTooLong, "are 257 tokens, but the model has 256 positions"),
    "BERT": ({"sample": "bert"}, CannotGenerate, "BertForMaskedLM generates no text: its task is masked-lm"),
    "ViT": ({"sample": "vit"}, CannotGenerate, "generates no text: its task is image-classification"),
    "training": ({"train": True}, BadOption, "--task generate and --train exclude each other"),
    "a length": ({"seq": 4}, BadOption, "--task generate and --seq exclude each other"),
    "a cache": ({"cache": 4}, BadOption, "--task generate and --cache exclude each other"),
    "ranges": ({"dynamic": {"seq": (1, 4)}}, BadOption, "--task generate and --dynamic exclude each other"),
    "no new tokens": ({"new_tokens": 0}, BadOption, "--new-tokens is 0"),
    "no prompt": ({"prompt_length": 0}, BadOption, "--prompt-length is 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_requests_are_refused_by_the_plan(name: str, tmp_path: Path) -> None:
    changes, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        plan(request_of(tmp_path / "a", **changes))
    assert list(tmp_path.iterdir()) == []


def test_lengths_are_for_generation(tmp_path: Path) -> None:
    for name in ("prompt_length", "new_tokens"):
        with pytest.raises(BadOption, match="is for generation"):
            plan(quick(tmp_path / "a", **{name: 4}))


def test_a_plan_shows_the_lengths(tmp_path: Path) -> None:
    made = plan(request_of(tmp_path / "a", batch=None))
    assert ("generation", "batches of 1 to 8 prompts of 1 to 9 tokens, and 7 new tokens, seed 0") in made.rows()
    assert made.as_data()["prompt_length"] == 9
    usual = plan(request_of(tmp_path / "a", batch=1, prompt_length=None, new_tokens=None)).generation
    assert usual == GenerationLengths(128, 128, 1)
    assert plan(request_of(tmp_path / "a", prompt_length=None, new_tokens=250)).generation == GenerationLengths(
        6, 250, 3
    )


def test_prompts_of_all_kinds_are_within_the_lengths() -> None:
    assert GenerationLengths(1, 4, 1).validation_prompts() == GenerationLengths(1, 4, 1).all_kinds() == [Prompts(1, 1)]
    assert Prompts(2, 2, padded=True) in GenerationLengths(8, 4, 2).boundary_prompts()
    assert all(GenerationLengths(2, 4, 2).includes(kind) for kind in GenerationLengths(2, 4, 2).all_kinds())


def test_a_model_that_needs_a_program_for_each_length_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunder_core.workflow.pipeline.generation.generation_coverage.MAX_PROGRAMS", 1)
    with pytest.raises(RangeNotServed, match="programs do not serve single prompts of 1 to 4 tokens"):
        optimize(request_of(tmp_path / "a", prompt_length=4, new_tokens=2, batch=1))
    assert list(tmp_path.iterdir()) == []


class StaticCacheUncompiled(HFGenerate):
    """The static cache, with the executor that compiles no kernels."""

    executors = ("torch",)


def test_a_recipe_with_a_custom_generate_keeps_it(tmp_path: Path) -> None:
    report = optimize(request_of(tmp_path / "a", recipe=StaticCacheUncompiled, include_weights=True)).report
    assert report.programs == 4
    loaded, model = thunder.load(tmp_path / "a", strict=True), thunder.load(tmp_path / "a")._thunder.subject
    for kind in ("one token", "the longest", "the largest", "padded"):
        assert torch.equal(continue_prompts(loaded, **MODES[kind]), continue_prompts(model, **MODES[kind]))
    for generating in (loaded, copy.deepcopy(loaded)):
        assert type(continue_prompts(generating, 1, 4, return_dict_in_generate=True).past_key_values) is StaticCache


def test_a_generate_method_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Local(GenerateWithStaticCache):
        """A transform that no other process can import."""

    class LocalRecipe(Uncompiled):
        """A recipe with the local transform."""

        def setup_transforms(self) -> tuple[Transform, ...]:
            return (Local(),)

    with pytest.raises(CannotGenerate, match=r"Local of the recipe .* cannot be saved in an artifact"):
        optimize(request_of(tmp_path / "a", recipe=LocalRecipe))
    assert list(tmp_path.iterdir()) == []
