"""Device and dtype of a model for which the user names neither: those of its recipe, or the best available."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import (
    DegradedWarning,
    DeviceNotAvailable,
    EnvironmentLacks,
    RecipeConflict,
    UnknownName,
)
from thunder_core.passes.recipe import Cuda, Recipe
from thunder_core.tracing.extension.transform import Transform
from thunder_core.workflow.pipeline import Request, optimize, plan
from thunder_core.workflow.pipeline import compile as compile_by
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

HOPPER = "hf-llama3-hopper"


class OnTheGpu(Transform):
    """A transform for GPUs alone."""

    requirements = (Cuda(),)

    def __call__(self, trace):
        return trace


class Elsewhere(Recipe):
    """A recipe for the CPU and another dtype."""

    device = "cpu"
    dtype = "float64"

    def setup_transforms(self):
        return (OnTheGpu(),)


class Graphical(Recipe):
    """A recipe for a GPU that does not declare this requirement."""

    device = "cuda"


def with_gpu(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """Make PyTorch see GPUs of these compute capabilities."""
    number = {None: 0}
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_capability",
        lambda device=None: capabilities[number.get(device, getattr(device, "index", None) or 0)],
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: False)  # the free memory is not asked of a driver


def request_with(out: Path, recipe: object = HOPPER, **model: object) -> Request:
    request = quick(out, recipe)
    return replace(request, model=replace(request.model, **model))


def placement(request: Request) -> tuple[str, str]:
    planned = plan(request)
    return planned.device, planned.prepared.dtype_name


@pytest.mark.parametrize(
    ("recipe", "model", "expected"),
    [
        (HOPPER, {}, ("cuda", "bfloat16")),
        (HOPPER, {"device": "cuda:0"}, ("cuda:0", "bfloat16")),
        (HOPPER, {"dtype": "float16"}, ("cuda", "float16")),
        (HOPPER, {"device": "cpu"}, ("cpu", "float32")),
        (HFLlama3Hopper() + Recipe(), {}, ("cuda", "bfloat16")),
        (Recipe() + HFLlama3Hopper(), {}, ("cuda", "bfloat16")),
        ("default", {}, ("cuda", "float32")),
        ("hf-llama", {"device": "cpu"}, ("cpu", "float32")),
        (Elsewhere, {}, ("cpu", "float64")),
        (Elsewhere, {"device": "cuda"}, ("cuda", "float32")),
    ],
)
def test_device_and_dtype_on_a_machine_with_a_gpu(monkeypatch, out, recipe, model, expected):
    with_gpu(monkeypatch, (9, 0))
    assert placement(request_with(out, recipe, **model)) == expected


@pytest.mark.parametrize("recipe", [HOPPER, "default", "hf-llama", Graphical])
def test_device_and_dtype_on_a_machine_without_a_gpu(monkeypatch, out, recipe):
    with_gpu(monkeypatch)
    assert placement(request_with(out, recipe)) == ("cpu", "float32")
    with pytest.raises(DeviceNotAvailable):
        plan(request_with(out, recipe, device="cuda"))


def test_the_plan_of_hopper_is_whole_on_hopper(monkeypatch, out):
    with_gpu(monkeypatch, (9, 0))
    planned = plan(replace(request_with(out), strict=True))
    assert planned.prepared.degraded == ()
    assert dict(planned.rows())["task"].endswith("bfloat16, on cuda")


def test_a_model_on_the_cpu_degrades_the_recipe_for_hopper(monkeypatch, out):
    with_gpu(monkeypatch, (9, 0))
    planned = plan(request_with(out, device="cpu"))
    assert [part.part for part in planned.prepared.degraded] == list(HFLlama3Hopper.parts)
    assert {part.reason for part in planned.prepared.degraded} == {"the model is on the device cpu"}
    assert all("--device cpu" in part.fix for part in planned.prepared.degraded)
    assert "degraded" in dict(planned.rows())
    with pytest.raises(EnvironmentLacks, match="the model is on the device cpu"):
        plan(replace(request_with(out, device="cpu"), strict=True))


@pytest.mark.parametrize("gpus", [(), ((9, 0),)])
def test_a_model_that_is_compiled_in_memory_stays_on_its_device_with_a_note(monkeypatch, gpus):
    with_gpu(monkeypatch, *gpus)
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(model_type="llama")
    with pytest.warns(DegradedWarning, match="the model is on the device cpu" if gpus else "no CUDA GPU"):
        compiled = compile_by(model, HOPPER)
    assert compiled.weight.device.type == "cpu"


def test_the_gpu_that_counts_is_the_models(monkeypatch, out):
    with_gpu(monkeypatch, (9, 0), (8, 0))
    assert plan(request_with(out, device="cuda:0")).prepared.degraded == ()
    assert {part.reason for part in plan(request_with(out, device="cuda:1")).prepared.degraded} == {
        "a GPU has compute capability 8.0"
    }


def test_an_older_gpu_is_used_and_reported(monkeypatch, out):
    with_gpu(monkeypatch, (8, 0))
    planned = plan(request_with(out))
    assert (planned.device, planned.prepared.dtype_name) == ("cuda", "bfloat16")
    assert "compute capability 8.0" in planned.prepared.degraded[0].reason


def test_a_transform_for_gpus_is_left_out_on_the_cpu(monkeypatch, out):
    with_gpu(monkeypatch, (9, 0))
    planned = plan(request_with(out, Elsewhere))
    assert planned.prepared.transforms == ()
    assert [part.part for part in planned.prepared.degraded] == ["test_placement"]
    assert plan(request_with(out, Elsewhere, device="cuda")).prepared.transforms[0].name == "test_placement"


def test_missing_gpu_degrades_a_recipe_and_is_an_error_if_strict(monkeypatch, out):
    with_gpu(monkeypatch)
    assert [part.part for part in plan(request_with(out, Graphical)).prepared.degraded] == ["the GPU"]
    with pytest.raises(EnvironmentLacks):
        plan(replace(request_with(out, Graphical), strict=True))


def test_a_target_has_the_recipes_dtype_and_leaves_the_model_where_it_is(monkeypatch, out):
    for gpus in ((), ((9, 0),)):
        with_gpu(monkeypatch, *gpus)
        planned = plan(replace(request_with(out), target="sm_90"))
        assert (planned.device, planned.prepared.dtype_name) == ("cuda", "bfloat16")
        assert planned.prepared.model.device == "cpu"


@pytest.mark.parametrize("declared", [{"device": "gpu"}, {"dtype": "float33"}])
def test_a_name_that_does_not_exist_is_refused(out, declared):
    with pytest.raises(UnknownName, match=next(iter(declared.values()))):
        plan(request_with(out, type("Misspelled", (Recipe,), declared)))


def test_recipes_with_different_placements_conflict_unless_the_user_decides(monkeypatch, out):
    both = HFLlama3Hopper() + Elsewhere()
    with pytest.raises(RecipeConflict, match="differ in their device"):
        plan(request_with(out, both))


@pytest.mark.gpu
def test_hopper_runs_on_the_gpu_in_bfloat16(out):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("for Hopper and later")
    outcome = optimize(replace(request_with(out), strict=True))
    assert {(p.device.type, p.dtype) for p in outcome.compiled.parameters()} == {("cuda", torch.bfloat16)}
    assert (outcome.report.model.device, outcome.report.model.dtype) == ("cuda", "bfloat16")
    assert outcome.report.degraded == ()


@pytest.mark.parametrize(
    ("recipe", "changes", "seq"),
    [
        (HOPPER, {}, 2048),
        (HOPPER, {"seq": 64}, 64),
        (HOPPER, {"device": "cpu"}, 128),
        (HFLlama3Hopper() + Recipe(), {}, 2048),
        ("hf-llama", {}, 128),
    ],
)
def test_a_recipe_chooses_the_length_of_texts_on_its_device(monkeypatch, out, recipe, changes, seq):
    with_gpu(monkeypatch, (9, 0))
    changes = dict(changes)
    request = quick(out, recipe, sample="llama3", seq=changes.pop("seq", None))
    planned = plan(replace(request, model=replace(request.model, **changes)))
    assert planned.size.seq == seq
    assert ("without padding" in dict(planned.rows())["inputs"]) is (recipe != "hf-llama")
