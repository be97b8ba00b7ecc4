"""Plans: every error that a plan can find is found before heavy work, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import (
    BadOption,
    EnvironmentLacks,
    OutputExists,
    OutputNotWritable,
    RecipeMismatch,
    SequenceTooLong,
    UnknownName,
)
from thunder_core.passes.recipe import Package, Recipe
from thunder_core.tracing.extension.transform import Transform
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import STAGES, Request, plan
from thunder_core.workflow.pipeline.request.destination import choose_destination, file_stem
from thunder_core.workflow.pipeline.request.recipes import find_recipe
from thunder_core.workflow.pipeline.session.executors import candidates
from thunder_recipes.hf_llama import HFLlama

ABSENT = Package("a_package_that_nobody_has", extra="rare")


class Rare(Transform):
    """A transform that needs a package that does not exist."""

    requirements = (ABSENT,)

    def __call__(self, trace):
        raise AssertionError("left out where its needs are not met")


class Wanting(Recipe):
    """A recipe with a part that this machine lacks."""

    executors = ("of-another-world", "torch")

    def setup_transforms(self):
        return (Rare(),)


def matters(planned):
    return dict(planned.rows())


def test_a_plan_says_what_will_be_done(out):
    planned = plan(quick(out, "hf-llama", batch=2))
    rows = matters(planned)
    assert rows["model"] == "LlamaForCausalLM (LlamaForCausalLM)" or "sample" in rows["model"]
    assert rows["task"] == "causal-lm, float32, on cpu"
    assert rows["recipe"] == "hf-llama"
    assert rows["inputs"] == "batch 2, sequence 8, seed 0"
    assert rows["artifact"] == str(out)
    assert planned.stages == STAGES
    assert not out.exists()
    assert list(out.parent.iterdir()) == []


def test_without_a_model_the_recipes_own_sample_is_planned(out):
    planned = plan(Request(recipe="hf-bert", out=out))
    assert planned.prepared.loading.config.model_type == "bert"
    assert planned.as_data()["model"] == planned.prepared.recipe.sample


def test_inputs_are_described_in_the_units_of_the_model(out):
    assert matters(plan(quick(out, sample="vit", batch=2)))["inputs"] == "batch 2, 32 x 32 pixels, seed 0"
    assert matters(plan(quick(out, sample="t5")))["inputs"] == "batch 1, sequence 8, seed 0"


def test_the_usual_length_gives_way_to_the_models_own(out):
    assert plan(quick(out, seq=None, sample="gpt2")).size.seq <= 128
    with pytest.raises(SequenceTooLong, match="257"):
        plan(quick(out, seq=257, sample="llama"))


def test_missing_parts_degrade_the_recipe_and_are_left_out(out):
    planned = plan(quick(out, Wanting))
    assert planned.prepared.transforms == ()
    assert [(part.reason, part.fix) for part in planned.prepared.degraded] == [(ABSENT.missing(), ABSENT.fix)]
    assert [(executor.name, executor.reason is None) for executor in planned.prepared.executors] == [
        ("of-another-world", False),
        ("torch", True),
    ]
    with pytest.raises(EnvironmentLacks, match="a_package_that_nobody_has"):
        plan(quick(out, Wanting, strict=True))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"batch": 0}, BadOption),
        ({"seq": 0}, BadOption),
        ({"runs": 1}, BadOption),
        ({"warmup": -1}, BadOption),
        ({"recipe": "hf-lama"}, UnknownName),
        ({"options": {"speed": "high"}}, UnknownName),
        ({"recipe": "hf-bert"}, RecipeMismatch),
        ({"model": ModelRequest(dtype="float33")}, UnknownName),
        ({"model": ModelRequest(device="tpu")}, UnknownName),
        ({"model": ModelRequest(task="juggling")}, UnknownName),
        ({"model": ModelRequest(seed=12345678901234567890)}, BadOption),
        ({"model": ModelRequest(seed=-1)}, BadOption),
    ],
)
def test_wrong_requests_are_refused(out, change, error):
    with pytest.raises(error):
        plan(replace(quick(out), **change))
    assert list(out.parent.iterdir()) == []


def test_the_family_is_checked_by_the_config(out):
    with pytest.raises(RecipeMismatch, match=r"hf-llama is for llama.* this model is bert"):
        plan(quick(out, "hf-llama", sample="bert"))


class TestRecipes:
    def test_by_name_class_and_instance(self):
        instance = HFLlama()
        assert isinstance(find_recipe("hf-llama", {}), HFLlama)
        assert isinstance(find_recipe("hf_llama", {}), HFLlama)
        assert isinstance(find_recipe(HFLlama, {}), HFLlama)
        assert find_recipe(instance, {}) is instance

    def test_an_instance_takes_no_more_options(self):
        with pytest.raises(BadOption, match="instance"):
            find_recipe(HFLlama(), {"speed": 1})

    def test_programs_that_cannot_be_saved_are_refused_early(self, out):
        class Otherwise(HFLlama):
            compiler = "thunderfx"

        with pytest.raises(BadOption, match=r"traces with thunderfx, whose programs cannot be saved in an artifact"):
            plan(quick(out, HFLlama() + Otherwise()))

    def test_the_nearest_name_is_suggested(self):
        with pytest.raises(UnknownName) as caught:
            find_recipe("hf-lama3", {})
        assert "hf-llama3" in caught.value.fix


def test_executors_keep_the_recipes_order():
    assert [candidate.name for candidate in candidates(("torch", "nowhere"))] == ["torch", "nowhere"]


def compiled():
    double = thunder.jit(lambda x: x * 2)
    double(torch.ones(2))
    return double


class TestDestination:
    def choose(self, out, *, force=False):
        return choose_destination(out, force=force, model="org/Tiny Model", recipe="default")

    def test_a_free_name_is_found(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert self.choose(None) == tmp_path / "Tiny-Model-default.thunder"
        (tmp_path / "Tiny-Model-default.thunder").mkdir()
        (tmp_path / "Tiny-Model-default-2.thunder").mkdir()
        assert self.choose(None) == tmp_path / "Tiny-Model-default-3.thunder"

    @pytest.mark.parametrize(
        ("name", "text"), [("/a/b/model/", "model"), ("org/Name", "Name"), ("..", "model"), ("a b:c", "a-b-c")]
    )
    def test_a_models_name_as_a_files(self, name, text):
        assert file_stem(name) == text

    def test_existing_files_and_folders_are_kept(self, tmp_path):
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "notes").touch()
        for force in (False, True):
            with pytest.raises(OutputExists, match="kept"):
                self.choose(tmp_path / "old", force=force)
        (tmp_path / "file").touch()
        with pytest.raises(OutputExists):
            self.choose(tmp_path / "file", force=True)

    def test_an_artifact_and_an_empty_folder_may_be_replaced(self, tmp_path):
        (tmp_path / "empty").mkdir()
        assert self.choose(tmp_path / "empty", force=True) == tmp_path / "empty"
        thunder.save(compiled(), tmp_path / "old")
        assert self.choose(tmp_path / "old", force=True) == tmp_path / "old"

    def test_a_folder_with_a_foreign_manifest_is_kept(self, tmp_path):
        (tmp_path / "extension").mkdir()
        (tmp_path / "extension" / "manifest.json").write_text('{"manifest_version": 3}')
        with pytest.raises(OutputExists, match="is not an artifact"):
            self.choose(tmp_path / "extension", force=True)

    def test_missing_parents_are_no_obstacle_and_are_not_made(self, tmp_path):
        assert self.choose(tmp_path / "a" / "b") == tmp_path / "a" / "b"
        assert list(tmp_path.iterdir()) == []

    def test_a_file_instead_of_a_parent_folder_is_refused(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OutputNotWritable, match="file is a file"):
            self.choose(tmp_path / "file" / "artifact")

    def test_a_folder_that_cannot_be_written(self):
        with pytest.raises(OutputNotWritable, match="/proc"):
            self.choose(Path("/proc/artifact"))

    def test_a_name_that_no_file_system_accepts_is_refused(self, tmp_path):
        with pytest.raises(OutputNotWritable):
            self.choose(tmp_path / ("x" * 5000))
