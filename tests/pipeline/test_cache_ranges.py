"""Ranges of the length of a cache: one artifact continues texts of all lengths, token by token."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import quick
from tests.pipeline.test_dynamic import python_path
from tests.processes import run_python
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import BadOption, BadSymbolicArgument, SequenceTooLong, ThunderError
from thunder_core.foundation.transformers_versions import CACHE, EARLIER_CACHE
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.inspect.runnable import model_and_inputs
from thunder_core.workflow.inspect.subject import subject_of
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline import optimize, plan
from thunder_core.workflow.pipeline.bench import bench_artifact
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.ranges import ranges_in
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.validate import validate_artifact


class Eager(Recipe):
    """A recipe that compiles nothing."""


LENGTHS = {"cache": (0, 24), "batch": (1, 2), "seq": (1, 12)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that reads a prompt and continues it token by token.

    Kernels for all sizes are tested in `test_dynamic.py`, and kernels of calls with caches on `docs/generation.md`.
    """
    folder = tmp_path_factory.mktemp("cached") / "small.thunder"
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        leave_inductor_out(patch)
        request = quick(folder, "hf-llama", seq=None, dynamic=LENGTHS, include_weights=True, benchmark=False)
        done = optimize(request)
    assert done.report.validation is not None
    assert all(point.passed and point.optimized for point in done.report.validation.sizes)
    return folder


GENERATES = """
import sys, torch, thunder_core as thunder
from transformers.cache_utils import DynamicCache
from thunder_core.foundation.transformers_versions import cache_argument
loaded = thunder.load(sys.argv[1], strict=True)
eager = thunder.load(sys.argv[1])._thunder.subject
NAME = cache_argument(eager)
def generate(model, batch, length, count):
    cache, found = DynamicCache(config=model.config), []
    ids = torch.arange(batch * length).reshape(batch, length) % 50 + 3
    mask = torch.ones_like(ids)
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=ids, attention_mask=mask, **{NAME: cache}).logits[:, -1:]
            ids = logits.argmax(-1)
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            found.append(logits)
    return torch.cat(found, 1), cache
for batch, length, count in ((1, 2, 20), (2, 12, 13), (1, 1, 4)):
    logits, cache = generate(loaded, batch, length, count)
    expected, theirs = generate(eager, batch, length, count)
    torch.testing.assert_close(logits, expected)
    assert cache.get_seq_length() == length + count - 1
    for one, other in zip(cache.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
assert "thunder_core.compilation.compiler" not in sys.modules, "something was compiled"
print("served")
"""


def test_an_artifact_generates_in_a_fresh_process_without_a_compiler(artifact: Path, tmp_path: Path) -> None:
    kept = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/bin"}
    places = {"THUNDER_CACHE_DIR": str(tmp_path / "cache"), "CXX": "/bin/false", "CC": "/bin/false"}
    done = run_python("-c", GENERATES, artifact, cwd=Path.cwd(), env={**kept, **places, "PYTHONPATH": python_path()})
    assert done.stdout == "served\n", done.stderr


def test_few_programs_serve_the_range_and_the_manifest_has_ranges_and_sizes(artifact: Path) -> None:
    manifest = open_artifact(artifact).manifest
    assert manifest.dynamic == LENGTHS
    assert manifest.random_inputs == {"batch": 1, "seq": 1, "cache": 24, "seed": 0}
    assert manifest.example == ()  # the cache is created again from random values
    assert len(manifest.programs) <= 4
    named = {argument.name: (argument.lower, argument.upper) for argument in manifest.compiler.options.symbolic}
    assert (1, 24) in {named.get(f"{cache}.layers[*].keys.size(-2)") for cache in (CACHE, EARLIER_CACHE)}
    assert named["attention_mask.size(-1)"] == (1, 36)


def test_a_file_that_runs_a_trace_creates_a_random_cache(artifact: Path) -> None:
    lines = [*model_and_inputs(subject_of(open_artifact(artifact)))]
    assert lines[-1].endswith("(), example_inputs(loaded, batch=1, seq=1, cache=24, seed=0)")


def test_an_artifact_is_validated_and_measured_behind_caches(artifact: Path) -> None:
    points = [
        point.size
        for point in validate_artifact(artifact, ValidateRequest(inputs=1, write=False, seed=3)).validation.sizes
    ]
    assert points[0] == "1 x 1 and cache 24"
    assert {"2 x 12 and cache 0", "2 x 1 and cache 24", "2 x 12 and cache 24"} < set(points)
    suite = bench_artifact(artifact, BenchRequest(runs=2, warmup=0, batches=(1,), seqs=(1,)))
    measured = [size_in_words(report.configuration) for report in suite.reports]
    assert measured == ["1 x 1 and cache 24", "1 x 1 and cache 0", "1 x 1 and cache 1"]


def test_a_single_token_is_traced_with_a_cache_of_the_default_length(tmp_path: Path) -> None:
    assert plan(quick(tmp_path / "a", seq=None, cache=5)).size == InputSize(1, 1, cache=5)
    ranged = plan(quick(tmp_path / "a", seq=None, dynamic={"cache": (1, 200)}))
    assert ranged.size == InputSize(1, 1, cache=128)
    assert ("inputs", "batch 1, sequence 1 and cache 128, seed 0") in ranged.rows()
    assert plan(quick(tmp_path / "a", seq=4, dynamic={"cache": (0, 9)})).size == InputSize(1, 4, cache=9)


def test_a_cache_of_one_length_needs_no_range(tmp_path: Path) -> None:
    done = optimize(quick(tmp_path / "a", Eager, seq=None, cache=6, benchmark=False, inputs=1))
    assert open_artifact(tmp_path / "a").manifest.random_inputs == {"batch": 1, "seq": 1, "cache": 6, "seed": 0}
    assert done.report.validation is not None and done.report.validation.passed


REFUSED: dict[str, tuple[dict[str, Any], type[ThunderError], str]] = {
    "positions": (
        {"dynamic": {"cache": (1, 256)}, "seq": 8},
        SequenceTooLong,
        "cache=1:256, 264 tokens in total, exceeds the model's 256",
    ),
    "both": ({"dynamic": {"cache": (1, 200), "seq": (1, 57)}, "seq": 8}, SequenceTooLong, "257 tokens in total"),
    "outside": ({"dynamic": {"cache": (8, 16)}, "cache": 4}, BadOption, "--cache is 4, outside the range"),
    "below": ({"cache": -1}, BadOption, "--cache is -1"),
    "training": ({"cache": 4, "train": True}, BadOption, "--cache and --train exclude each other"),
    "a range in training": ({"dynamic": {"cache": (1, 4)}, "train": True}, BadOption, "--dynamic cache= and --train"),
    "real inputs": ({"cache": 4, "input": "x.jsonl"}, BadOption, "--cache and --input .* exclude"),
    "samples": ({"cache": 4, "evaluate": "x.jsonl"}, BadOption, "--cache and --eval .* exclude"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_caches_that_cannot_be_are_refused_by_the_plan(name: str, tmp_path: Path) -> None:
    changes, error, message = REFUSED[name]
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1], "labels": [1]}\n')
    files = {key: tmp_path / changes[key] for key in ("input", "evaluate") if key in changes}
    with pytest.raises(error, match=message):
        plan(quick(tmp_path / "a", **{**changes, **files}))


def test_a_model_without_a_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="BertForMaskedLM takes no KV cache"):
        optimize(quick(tmp_path / "a", sample="bert", dynamic={"cache": (1, 8)}))


def test_only_the_range_of_a_cache_may_begin_at_zero() -> None:
    assert ranges_in("--dynamic", {"cache": "0:8"}) == {"cache": (0, 8)}


def test_a_dimension_is_named_by_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(BadSymbolicArgument, match="did you mean cache"):
        plan(quick(tmp_path / "a", dynamic={"cahce": (1, 8)}))
