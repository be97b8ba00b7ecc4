"""Ranges of sizes in an optimization: one artifact serves all sizes, validated and measured at several points."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from transformers.models.llama import modeling_llama

import thunder_core
import thunder_executors
import thunder_recipes
from tests.pipeline.conftest import quick
from tests.processes import run_python
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.compilation.compiler import cache_misses
from thunder_core.foundation.errors import (
    BadOption,
    BadSymbolicArgument,
    EnvironmentLacks,
    OutOfMemory,
    OutOfTolerance,
    RangeNotServed,
    RecompileWarning,
    SequenceTooLong,
    ThunderError,
    WrongInputs,
)
from thunder_core.passes.recipe import Tolerance
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.loading import load
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.inspect.subject import subject_of
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline import optimize, plan
from thunder_core.workflow.pipeline.bench import bench_artifact
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.ranges import ranges_in
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.session import session
from thunder_core.workflow.pipeline.session.dynamic import points_of, upper_end
from thunder_core.workflow.pipeline.session.range_coverage import MAX_PROBES, MAX_PROGRAMS, RangeCoverage
from thunder_core.workflow.pipeline.validate import validate_artifact
from thunder_core.workflow.report import Report, render_html, render_markdown
from thunder_recipes.default import Default

LENGTHS = {"seq": (2, 48), "batch": (1, 3)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama for ranges of lengths and batches."""
    folder = tmp_path_factory.mktemp("dynamic") / "small.thunder"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimize(quick(folder, "hf-llama", dynamic=LENGTHS, include_weights=True))
    return folder


@pytest.fixture(scope="module")
def report(artifact: Path) -> Report:
    return Report.model_validate_json((artifact / "report.json").read_text())


LOADS = """
import sys, torch, thunder_core as thunder
loaded = thunder.load(sys.argv[1], strict=True)
eager = thunder.load(sys.argv[1])
for batch, length in ((1, 2), (2, 17), (3, 48), (1, 31)):
    ids = torch.arange(batch * length).reshape(batch, length) % 50 + 3
    with torch.no_grad():
        given = loaded(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        expected = eager._thunder.subject(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(given, expected)
assert "thunder_core.compilation.compiler" not in sys.modules, "something was compiled"
print("served")
"""


def test_an_artifact_serves_the_range_in_a_fresh_process_without_a_compiler(artifact: Path, tmp_path: Path) -> None:
    kept = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/bin"}
    places = {"THUNDER_CACHE_DIR": str(tmp_path / "cache"), "CXX": "/bin/false", "CC": "/bin/false"}
    done = run_python("-c", LOADS, artifact, cwd=Path.cwd(), env={**kept, **places, "PYTHONPATH": python_path()})
    assert done.stdout == "served\n", done.stderr


def python_path() -> str:
    """The folders of Thunder's packages in this process."""
    return ":".join(
        str(Path(package.__file__).parent.parent) for package in (thunder_core, thunder_executors, thunder_recipes)
    )


def call(model: Any, batch: int, length: int) -> Any:
    ids = torch.full((batch, length), 7)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


def test_calls_beyond_the_range_are_reported(artifact: Path) -> None:
    strict = load(artifact, strict=True)
    with pytest.raises(WrongInputs, match=r"which serves seq 2 to 48, batch 1 to 3, accepts these inputs: .* is 49"):
        call(strict, 1, 49)
    with pytest.raises(WrongInputs, match=r"\.size\(0\): required 1 <= s0 <= 3, .* is 4"):
        call(strict, 4, 8)
    loaded = load(artifact)
    with pytest.warns(
        RecompileWarning, match=r"input_ids\.size\(-1\) 49, outside of 2 to 48, attention_mask.size\(-1\) 49"
    ):
        assert call(loaded, 1, 49).shape[1] == 49


def test_few_programs_serve_the_range_and_the_manifest_has_the_ranges(artifact: Path) -> None:
    manifest = open_artifact(artifact).manifest
    assert manifest.dynamic == LENGTHS
    assert len(manifest.programs) <= 2
    named = {argument.name: (argument.lower, argument.upper) for argument in manifest.compiler.options.symbolic}
    assert named["input_ids.size(0)"] == (1, 3)
    assert named["attention_mask.size(-1)"] == (2, 48)


def test_every_point_is_validated_and_measured(report: Report) -> None:
    assert report.validation is not None and report.benchmark is not None
    sizes = [point.size for point in report.validation.sizes]
    assert sizes[0] == "1 x 8"
    assert {"1 x 2", "1 x 48", "3 x 2", "3 x 48"} < set(sizes)
    assert len(sizes) == 6
    assert all(point.passed and point.optimized for point in report.validation.sizes)
    assert report.validation.inputs == 2 + 5
    measured = [(point.configuration["batch"], point.configuration["seq"]) for point in report.further_benchmarks]
    assert [" x ".join(words) for words in measured] == sizes[1:]
    assert report.dynamic == LENGTHS


def test_constraints_are_reported_as_python_with_their_source(report: Report) -> None:
    conditions = {constraint.condition for constraint in report.constraints}
    assert "2 <= s1 <= 48" in conditions
    assert any(
        "modeling_llama.py" in constraint.needed or "masking_utils.py" in constraint.needed
        for constraint in report.constraints
    )
    for page in (render_markdown(report), render_html(report)):
        assert "3 x 48" in page
        assert "masking_utils.py" in page


def test_the_report_lists_the_tested_sizes(report: Report) -> None:
    told = r"tried \d+ sizes: the ends, and the sizes next to each number in a constraint"
    assert re.fullmatch(told, report.tried_sizes)
    assert re.search(rf"served by \S+ programs?; {told}", render_markdown(report))


def test_some_of_many_combinations_of_sizes_are_sampled_from_all_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = {"batch": (1, 1000), "seq": (1, 1000)}
    told = StatedConstraint("x", "s0 in ...", "", "", integers=tuple(range(10, 200, 10)))
    monkeypatch.setattr(RangeCoverage, "programs", [SimpleNamespace(constraints=[told])])
    probes = list(RangeCoverage(cast("Any", None), ranges, InputSize(1, 8))._probes())
    assert {InputSize(1, 191), InputSize(109, 8)} <= set(probes)
    for dimension in (0, 1):
        assert {probe[dimension] for probe in probes} >= {9, 10, 11, 101, 1000}
    assert len({*probes}) > MAX_PROBES


def test_memory_is_measured_for_the_largest_input(report: Report, tmp_path: Path) -> None:
    small = optimize(quick(tmp_path / "a", "hf-llama", validate=False, benchmark=False)).report
    assert report.memory_peak is not None and small.memory_peak is not None
    assert report.memory_peak.bytes > 3 * 48 / 8 * 0.5 * small.memory_peak.bytes


def test_an_input_that_does_not_fit_at_the_upper_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*_: object, batch: int, seq: int, **__: object) -> None:
        asked.append((batch, seq))
        raise OutOfMemory("it does not fit", fix="make it smaller")

    monkeypatch.setattr(session, "require_memory", refuse)
    with pytest.raises(OutOfMemory):
        optimize(quick(tmp_path / "a", dynamic=LENGTHS))
    assert asked == [(3, 48)]


def test_points_are_the_ends_and_an_untraced_size() -> None:
    traced = InputSize(1, 8)
    assert points_of({}, traced) == [traced]
    assert points_of({"seq": (1, 64)}, traced) == [traced, InputSize(1, 1), InputSize(1, 64), InputSize(1, 9)]
    assert points_of({"seq": (8, 9)}, traced) == [traced, InputSize(1, 9)]
    assert len(points_of({"seq": (1, 64), "batch": (1, 4)}, traced)) == 6
    assert upper_end({"seq": (1, 64)}, traced) == InputSize(1, 64)


REFUSED: dict[str, tuple[dict[str, Any], type[ThunderError], str]] = {
    "unknown": ({"dynamic": {"sequence": (1, 8)}}, BadSymbolicArgument, "did you mean seq"),
    "backwards": ({"dynamic": {"seq": (8, 1)}}, BadOption, r"--dynamic seq=8:1 is an empty range"),
    "one size": ({"dynamic": {"seq": (8, 8)}}, BadOption, "has only one size"),
    "zero": ({"dynamic": {"seq": (0, 10)}}, BadOption, "begins below 1"),
    "no pair": ({"dynamic": {"seq": 8}}, BadOption, "not a range"),
    "no numbers": ({"dynamic": {"seq": ("1", "8")}}, BadOption, "not a range"),
    "too long": ({"dynamic": {"seq": (1, 1 << 20)}}, SequenceTooLong, "exceeds the"),
    "seq outside": ({"dynamic": {"seq": (16, 32)}}, BadOption, "--seq is 8, outside the range seq=16:32"),
    "batch outside": ({"dynamic": {"batch": (1, 2)}, "batch": 4}, BadOption, "--batch is 4, outside"),
    "real inputs": ({"dynamic": {"seq": (1, 8)}, "input": Path("x.jsonl")}, BadOption, "--input .* exclude"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ranges_that_cannot_be_are_refused_by_the_plan(name: str, tmp_path: Path) -> None:
    changes, error, message = REFUSED[name]
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1]}\n')
    changes = {key: tmp_path / value if isinstance(value, Path) else value for key, value in changes.items()}
    with pytest.raises(error, match=message):
        plan(quick(tmp_path / "a", **changes))


@pytest.mark.parametrize("text", ["a", "1", "1:b", "1-8", ":", "1:", "-1:8", "1:8:9", "1.5:2", "²:3"])
def test_texts_that_are_no_ranges_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="is not a range"):
        ranges_in("--dynamic", {"seq": text})
    assert ranges_in("--dynamic", {"seq": " 1 : 8 "}) == {"seq": (1, 8)}


def test_a_dimension_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSymbolicArgument, match=r"no input of this ViT.* depends on it"):
        optimize(quick(tmp_path / "a", sample="vit", dynamic={"seq": (1, 8)}))
    assert not (tmp_path / "a").exists()


def test_the_size_that_is_traced_is_brought_into_the_range(tmp_path: Path) -> None:
    planned = plan(quick(tmp_path / "a", seq=None, dynamic={"seq": (2, 40), "batch": (2, 4)}))
    assert planned.size == InputSize(2, 40)
    assert ("dynamic", "seq 2 to 40, batch 2 to 4; validated and measured at 2 x 40, 2 x 2, 4 x 2, 4 x 40, 3 x 9") in (
        planned.rows()
    )
    assert planned.as_data()["dynamic"] == {"seq": [2, 40], "batch": [2, 4]}


class Renaming(Default):
    """A recipe with another name for the sequence, and a name for the batch that does not cover one input."""

    dimensions: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "batch": ("input_ids.size(0)",),
        "seq": ("input_ids.size(1)", "attention_mask.size(1)"),
    }


def test_an_input_that_the_recipe_does_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadSymbolicArgument, match=r"attention_mask.size\(0\) depends on batch, but the recipe renaming"
    ):
        optimize(quick(tmp_path / "a", Renaming, dynamic={"batch": (1, 4)}))


class Sizing(Default):
    """A recipe with a transform for a few sizes alone."""

    def loosest_tolerance(self, dtype: torch.dtype) -> Tolerance:
        return Tolerance(times_eager=0.0, floor=0.0, kl=-1.0)


@pytest.mark.usefixtures("without_kernels")
def test_a_point_that_is_out_of_tolerance_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutOfTolerance, match="with inputs of 1 x 8, 1 x 2"):
        optimize(quick(tmp_path / "a", Sizing, dynamic={"seq": (2, 16)}))


@pytest.mark.usefixtures("without_kernels")
def test_a_range_that_needs_many_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that formats the length needs another program for each length."""
    forward = modeling_llama.LlamaModel.forward

    def told(self: Any, input_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        assert f"{input_ids.shape[1]}"
        return forward(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", told)
    with pytest.raises(RangeNotServed, match=rf"{MAX_PROGRAMS} programs do not serve all of seq 2 to 48: .*in .*told"):
        optimize(quick(tmp_path / "a", dynamic={"seq": (2, 48)}, validate=False, benchmark=False))
    assert not (tmp_path / "a").exists()


class Fixed(OperatorExecutor):
    """An executor that accepts constant sizes alone."""

    symbolic_sizes = False


class Constant(Default):
    """A recipe with an executor that accepts no symbols."""

    executors = (Fixed("fixed"), "inductor", "torch")


def test_an_executor_without_symbolic_sizes_is_dropped_and_reported(tmp_path: Path) -> None:
    planned = plan(quick(tmp_path / "a", Constant, dynamic={"seq": (2, 16)}))
    (lost,) = planned.prepared.degraded
    assert (lost.part, "only constant sizes" in lost.reason) == ("fixed", True)
    assert not plan(quick(tmp_path / "a", Constant)).prepared.degraded
    with pytest.raises(EnvironmentLacks, match="fixed: it supports only constant sizes"):
        plan(quick(tmp_path / "a", Constant, dynamic={"seq": (2, 16)}, strict=True))


@pytest.mark.usefixtures("without_kernels")
def test_steps_of_training_serve_ranges(tmp_path: Path) -> None:
    done = optimize(quick(tmp_path / "a", dynamic={"seq": (2, 16)}, train=True, benchmark=False, inputs=1))
    assert done.report.validation is not None
    assert [point.size for point in done.report.validation.sizes] == ["1 x 8", "1 x 2", "1 x 16", "1 x 5"]
    assert cache_misses(done.compiled) <= 2


def test_an_artifact_is_validated_at_several_points(artifact: Path) -> None:
    done = validate_artifact(artifact, ValidateRequest(inputs=1, write=False, seed=3))
    assert [point.size for point in done.validation.sizes] == ["1 x 8", "1 x 2", "3 x 2", "1 x 48", "3 x 48", "2 x 9"]


def test_an_artifact_is_measured_within_its_ranges(artifact: Path) -> None:
    suite = bench_artifact(artifact, BenchRequest(runs=2, warmup=0))
    measured = [size_in_words(report.configuration) for report in suite.reports]
    assert measured == ["1 x 48", "1 x 2", "3 x 2", "3 x 48", "2 x 9"]
    suite = bench_artifact(artifact, BenchRequest(runs=2, warmup=0, seqs=(8,)))
    assert [size_in_words(report.configuration) for report in suite.reports] == ["1 x 8", "3 x 8", "2 x 8"]
    with pytest.raises(BadOption, match="--seq is 64, outside the range seq=2:48"):
        bench_artifact(artifact, BenchRequest(runs=2, warmup=0, seqs=(8, 64)))


def test_an_inspection_has_the_constraints(artifact: Path) -> None:
    subject = subject_of(open_artifact(artifact))
    assert "2 <= s1 <= 48" in {constraint.condition for constraint in subject.constraints}
