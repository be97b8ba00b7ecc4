"""The whole optimization: every stage in order, timed. An error in any stage leaves no files."""

from __future__ import annotations

import errno
import json
from contextlib import nullcontext

import pytest
import torch

from tests.benchmark.test_verdict import steady
from tests.pipeline.conftest import Watcher, quick
from thunder_core.foundation.errors import (
    BadRecipe,
    Interrupted,
    OutOfDisk,
    OutOfMemory,
    OutOfTolerance,
    OutputExists,
    SpeedupMissed,
    WrongInputs,
)
from thunder_core.passes.recipe import Recipe, Tolerance
from thunder_core.tracing.extension.transform import Transform
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.loading import load
from thunder_core.workflow.models.loading.load import rebuild_model
from thunder_core.workflow.pipeline import STAGES, optimization, optimize
from thunder_core.workflow.pipeline.call_optimization import CallOptimization
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session import planning, session
from thunder_core.workflow.pipeline.session.prepare import prepare
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.pipeline.session.session import InputSize, open_model
from thunder_core.workflow.pipeline.validate import validate_artifact
from thunder_core.workflow.report import Report
from thunder_recipes.hf_llama import HFLlama


def test_everything_from_model_to_artifact(out):
    watcher = Watcher()
    outcome = optimize(quick(out, "hf-llama"), watcher)
    assert tuple(watcher.begun) == tuple(watcher.ended) == STAGES
    assert all(seconds >= 0 for seconds in watcher.ended.values())
    assert watcher.moves["validate"][-1] == (6, 6)
    assert watcher.moves["benchmark"][-1] == (2, 2)
    assert all(0 < done <= total for done, total in watcher.moves.get("compile", ()))
    assert watcher.moves["transform"][-1][0] == watcher.moves["transform"][-1][1]
    report = outcome.report
    assert report.validation.passed
    assert report.validation.inputs == 2
    assert [candidate.name for candidate in report.benchmark.candidates] == ["eager", "thunder"]
    assert [stage.name for stage in report.stages] == list(STAGES[:-1])
    assert report.executors[0].executor == "inductor"
    assert sum(share.time_share for share in report.executors) == pytest.approx(1.0)
    assert sum(share.operations for share in report.executors) == sum(o.count for o in report.operations) > 0
    assert max(point.bytes for point in report.memory) > 0
    assert outcome.artifact == out
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert Report.model_validate_json((out / "report.json").read_text()) == report


def test_the_artifact_gives_the_results_of_the_model(out):
    optimize(quick(out, validate=False, benchmark=False))
    manifest = json.loads((out / "manifest.json").read_text())
    loaded = rebuild_model(manifest["source"])
    ids = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        actual = load(out, loaded.model)(input_ids=ids, attention_mask=torch.ones_like(ids))
        expected = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    torch.testing.assert_close(actual.logits, expected.logits)


class Unpadded(HFLlama):
    """A recipe for texts without padding, in eager PyTorch."""

    padded = False
    executors = ("torch",)


@pytest.mark.parametrize("train", [False, True])
def test_recipe_for_texts_without_padding_serves_texts_with_a_mask_by_another_program(out, train):
    optimize(quick(out, Unpadded(), batch=2, train=train, benchmark=False))
    artifact = open_artifact(out)
    assert "attention_mask" not in artifact.manifest.example
    assert len(artifact.manifest.programs) == 2
    assert validate_artifact(out).validation.passed
    loaded = rebuild_model(artifact.manifest.source, train=train)
    compiled = load(out, loaded.model, strict=True)
    ids = torch.arange(16).reshape(2, 8)
    masks = (None, torch.ones_like(ids), torch.tensor([[0] * 3 + [1] * 5, [1] * 8]))
    labels = {"labels": ids} if train else {}
    for mask in masks:
        inputs = {"input_ids": ids, **({} if mask is None else {"attention_mask": mask}), **labels}
        with torch.set_grad_enabled(train):
            torch.testing.assert_close(compiled(**inputs).logits, loaded.model(**inputs).logits)
    with pytest.raises(WrongInputs, match="no program"):
        compiled(input_ids=ids, use_cache=False)


def test_disabled_stages_are_skipped_and_reported(out):
    watcher = Watcher()
    report = optimize(quick(out, validate=False, benchmark=False), watcher).report
    assert {"validate", "benchmark"}.isdisjoint(watcher.begun)
    assert report.validation is report.benchmark is None
    assert any("not validated" in line for line in report.plan)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("raised", "error"), [(KeyboardInterrupt, Interrupted), (MemoryError, OutOfMemory)], ids=["interrupt", "memory"]
)
def test_error_in_a_stage_leaves_nothing(out, stage, raised, error):
    with pytest.raises(error, match=stage):
        optimize(quick(out, inputs=1), Watcher(stage, raised))
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("stage", STAGES)
def test_the_old_artifact_survives_an_interrupt(out, stage):
    optimize(quick(out, validate=False, benchmark=False))
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(Interrupted):
        optimize(quick(out, inputs=1, force=True), Watcher(stage, KeyboardInterrupt))
    assert (out / "manifest.json").read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize(
    ("raised", "error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutOfDisk, "TH0701"),
        (KeyboardInterrupt(), Interrupted, "TH1301"),
        (MemoryError(), OutOfMemory, "TH0702"),
    ],
    ids=["disk", "interrupt", "memory"],
)
def test_error_while_writing_leaves_nothing(out, monkeypatch, raised, error, code):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("thunder_core.workflow.artifact.write.write_report", fail)
    with pytest.raises(error) as caught:
        optimize(quick(out, validate=False, benchmark=False))
    assert caught.value.code == code
    assert list(out.parent.iterdir()) == []


def test_a_gpu_that_is_full_is_named(out, monkeypatch):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(session, "validate", fail)
    with pytest.raises(OutOfMemory, match="validate"):
        optimize(quick(out))


def test_other_errors_pass_unchanged(out, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("something else")

    monkeypatch.setattr(session, "validate", fail)
    with pytest.raises(RuntimeError, match="something else"):
        optimize(quick(out))
    assert list(out.parent.iterdir()) == []


class Spoil(Transform):
    """A transform that makes the last addition a subtraction."""

    def __call__(self, trace):
        from dataclasses import replace

        from thunder_core.tracing.capture.torch_facts.symbols import symbol_of

        last = max(i for i, bsym in enumerate(trace.bound_symbols) if bsym.symbol.name == "torch.nn.functional.silu")
        lines = list(trace.bound_symbols)
        lines[last] = replace(lines[last], symbol=symbol_of(torch.nn.functional.gelu), kwargs={}, subsymbols=())
        return trace.having(lines, made_by="spoil")


class Spoiled(HFLlama):
    """A recipe whose result is wrong."""

    def setup_transforms(self):
        return (Spoil(),)


def test_a_wrong_result_is_not_published(out):
    with pytest.raises(OutOfTolerance) as caught:
        optimize(quick(out, Spoiled))
    assert not caught.value.report.passed
    assert list(out.parent.iterdir()) == []


def test_a_tolerance_of_the_recipe_decides(out):
    class Generous(Spoiled):
        def tolerance(self, dtype):
            return Tolerance(times_eager=1e12, floor=1.0, kl=100.0, top1=0.0)

    assert optimize(quick(out, Generous, benchmark=False)).report.validation.passed


def test_an_existing_folder_is_kept_before_anything_is_loaded(out, monkeypatch):
    out.mkdir()
    (out / "thesis.tex").write_text("ten years of work")
    monkeypatch.setattr(session, "load_model", lambda request: pytest.fail("nothing may be loaded"))
    for force in (False, True):
        with pytest.raises(OutputExists):
            optimize(quick(out, force=force))
    assert (out / "thesis.tex").read_text() == "ten years of work"


@pytest.mark.usefixtures("without_kernels")
def test_force_replaces_an_artifact(out):
    optimize(quick(out, validate=False, benchmark=False))
    first = json.loads((out / "manifest.json").read_text())
    optimize(quick(out, validate=False, benchmark=False, force=True, seq=5))
    second = json.loads((out / "manifest.json").read_text())
    assert first["digest"] != second["digest"]
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_an_error_of_a_recipes_validate_method_is_reported(out):
    class Choosy(Recipe):
        def validate(self, model):
            raise OSError("asked")

    with pytest.raises(BadRecipe, match="the recipe Choosy raised OSError: asked") as caught:
        optimize(quick(out, Choosy))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_second_trace_for_the_same_shapes_is_noted(out, monkeypatch):
    monkeypatch.setattr("thunder_core.workflow.pipeline.session.build_report.cache_misses", lambda compiled: 3)
    notes = optimize(quick(out, validate=False, benchmark=False)).report.model.notes
    assert notes == ("the model was traced 3 times for inputs of the same shapes",)


def test_every_point_of_a_range_has_to_show_the_speedup_that_is_required(out, monkeypatch):
    plan = planning.plan(quick(out, validate=False, require_speedup=1.5, runs=6))
    work = CallOptimization(plan, open_model(plan.prepared, Purpose()), Watcher())
    monkeypatch.setattr(CallOptimization, "_shares", lambda *_: TimeShares())
    for ratios, holds in (((2.0, 3.0), True), ((2.0, 1.1), False)):
        monkeypatch.setattr(CallOptimization, "_measure_all", lambda *_, ratios=ratios: [*map(steady, ratios)])
        with nullcontext() if holds else pytest.raises(SpeedupMissed, match="1 of 2 measurements"):
            work.results(None)


def test_a_step_of_training_is_not_measured_with_the_gradients_of_the_last_one(out):
    loaded = open_model(prepare(quick(out)), Purpose(train=True))
    with loaded.ready():
        loaded.call_of(loaded.model)(**loaded.inputs(InputSize(1, 4)))
        loaded.release()
        assert all(parameter.grad is None for parameter in loaded.model.parameters())


def test_two_runs_at_once_take_two_names(out, monkeypatch):
    """The second run takes the name that was free when the first run began, before the first run is done."""
    monkeypatch.chdir(out.parent)
    first = planning.plan(quick(None, validate=False, benchmark=False))
    first.destination.mkdir()
    write = optimization._write
    taken = []

    def taking(plan, *rest):
        if not taken:
            taken.append(plan.destination)
            plan.destination.mkdir()  # at the last moment
        return write(plan, *rest)

    monkeypatch.setattr(optimization, "_write", taking)
    outcome = optimization.carry_out(first)
    assert outcome.artifact not in (first.destination, *taken)
    assert outcome.artifact.parent == first.destination.parent
    assert any(str(outcome.artifact) in row for row in outcome.report.plan)
