"""The memory of each stage is planned from the config, and models that do not fit are refused before loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.random_checkpoint import SIZES, Size, config_of, write_checkpoint
from thunder_core.foundation.errors import OutOfMemory, UnknownName
from thunder_core.tracing.extension import requirement
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.memory import weight_lower_bound
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize, plan
from thunder_core.workflow.pipeline.session import memory_plan
from thunder_executors.packed_linear import PackedLinear

GIB = 1 << 30
SMALL = Size(2, 256, 512, 4, 1000)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in several shards."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, SMALL, shard=1 << 20)
    return folder


def config_folder(folder: Path, size: Size, dtype: str = "float32") -> Path:
    """A folder with the config of a model of a size, without weights."""
    config_of(size, dtype).save_pretrained(folder)
    return folder


def planned_memory(folder: Path, **options: object) -> memory_plan.MemoryPlan:
    """The planned memory of a model on the CPU."""
    random_weights = options.pop("random_weights", True)
    model = ModelRequest(str(folder), device="cpu", random_weights=random_weights, dtype=options.pop("dtype", None))
    memory = plan(Request(model=model, **options)).memory
    assert memory is not None
    return memory


def test_weights_are_counted_as_the_files_hold_them_and_are_mapped(checkpoint):
    memory = planned_memory(checkpoint, random_weights=False)
    assert len(list(checkpoint.glob("*.safetensors"))) > 1
    stored = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    assert memory.weights == pytest.approx(stored, rel=0.01)
    assert memory.is_mapped
    assert not planned_memory(checkpoint, random_weights=False, dtype="bfloat16").is_mapped
    assert not planned_memory(checkpoint).is_mapped


def test_each_stage_of_a_large_model_has_a_peak(tmp_path):
    memory = planned_memory(config_folder(tmp_path, SIZES["1.1"]))
    stages = dict(memory.stages)
    assert memory.weights == pytest.approx(4.18 * GIB, rel=0.01)
    assert list(stages) == ["load", "compile", "validate", "benchmark", "write"]
    assert stages["load"] == memory.weights
    assert memory.peak == stages["validate"]
    assert memory.peak < 1.3 * memory.weights


@pytest.mark.parametrize(
    ("options", "grows"),
    [
        ({"seq": 1024}, "compile"),
        ({"batch": 16}, "validate"),
        ({"train": True}, "validate"),
        ({"dynamic": {"batch": (1, 32)}}, "compile"),
    ],
)
def test_peak_grows_with_inputs_and_with_training(tmp_path, options, grows):
    folder = config_folder(tmp_path, SIZES["0.1"])
    assert dict(planned_memory(folder, **options).stages)[grows] > 1.1 * dict(planned_memory(folder).stages)[grows]


def test_cache_of_generation_counts(tmp_path):
    folder = config_folder(tmp_path, SIZES["0.1"])
    model = ModelRequest(str(folder), task="generate", device="cpu", random_weights=True)
    lengths = {"prompt_length": 64, "new_tokens": 64, "batch": 4}
    few = plan(Request(model=model, **lengths)).memory
    many = plan(Request(model=model, **{**lengths, "new_tokens": 1024})).memory
    assert many.peak > few.peak + 4 * 900 * 2 * 12 * 192 * 4  # keys and values of each layer, for each token


def test_quantized_weights_count_in_addition_to_the_original_weights(tmp_path):
    memory = planned_memory(config_folder(tmp_path, SIZES["0.1"]), recipe="int8-weight-only")
    assert 0.25 * memory.weights < memory.new_weights < 0.3 * memory.weights


def test_narrow_dtype_without_instructions_has_its_cost_in_the_plan(tmp_path, monkeypatch):
    folder = config_folder(tmp_path, SIZES["0.1"], "bfloat16")
    without = {"without": ("packed-linear",)}
    plans = {dtype: plan(Request(model=model_of(folder, dtype), **without)) for dtype in (None, "float16", "float32")}
    monkeypatch.setattr(requirement, "instruction_sets", lambda: frozenset({"avx2"}))
    for dtype in (None, "float16"):
        (cost,) = [text for matter, text in plans[dtype].rows() if matter == "dtype"]
        assert "loads 377 MiB of weights into memory instead of 189 MiB" in cost
        assert f"so {dtype or 'bfloat16'} is converted to float32 in each product" in cost
    assert "dtype" not in dict(plans["float32"].rows())
    for flags in ({"avx512_bf16", "avx512_fp16"}, {"amx_bf16", "amx_fp16"}, {"bf16", "asimdhp"}, set()):
        monkeypatch.setattr(requirement, "instruction_sets", lambda flags=flags: frozenset(flags))
        assert not any("dtype" in dict(planned.rows()) for planned in plans.values())


@pytest.mark.parametrize(
    ("dtype", "options", "slow"),
    [
        ("bfloat16", {"tune": 1.0}, "converts other products, such as convolutions,"),
        ("float16", {"tune": 1.0}, "converts other products, such as convolutions,"),
        ("bfloat16", {"tune": 1.0, "train": True}, "converts the products of the backward, and convolutions,"),
        ("bfloat16", {"tune": 0.0}, "bfloat16 is converted to float32 in each product"),
        ("float16", {"tune": 1.0, "without": ("packed-linear",)}, "float16 is converted to float32 in each product"),
    ],
)
def test_cost_of_a_narrow_dtype_depends_on_the_executor_that_widens_it(tmp_path, monkeypatch, dtype, options, slow):
    monkeypatch.setattr(PackedLinear, "missing_on", lambda executor, device: None)
    folder = config_folder(tmp_path, SIZES["0.1"], dtype)
    planned = plan(Request(model=model_of(folder, None), **options))
    monkeypatch.setattr(requirement, "instruction_sets", lambda: frozenset({"avx2", "fma"}))
    cost = dict(planned.rows())["dtype"]
    assert slow in cost
    assert (f"packed-linear widens {dtype} in registers" in cost) == ("is converted" not in slow)


def test_narrow_dtype_is_converted_on_a_machine_without_the_executor_that_widens_it(tmp_path, monkeypatch):
    monkeypatch.setattr(PackedLinear, "missing_on", lambda executor, device: "there is no C++ compiler")
    planned = plan(Request(model=model_of(config_folder(tmp_path, SIZES["0.1"], "bfloat16"), None), tune=1.0))
    monkeypatch.setattr(requirement, "instruction_sets", lambda: frozenset({"avx2", "fma"}))
    assert "bfloat16 is converted to float32 in each product" in dict(planned.rows())["dtype"]


def model_of(folder: Path, dtype: str | None) -> ModelRequest:
    """The request for a model with random weights of a dtype."""
    return ModelRequest(str(folder), device="cpu", random_weights=True, dtype=dtype)


def test_model_that_does_not_fit_is_refused_with_fitting_alternatives(tmp_path, monkeypatch):
    folder = config_folder(tmp_path, SIZES["1.1"])
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: int(3.5 * GIB))
    request = Request(model=ModelRequest(str(folder), device="cpu", random_weights=True))
    with pytest.raises(OutOfMemory) as caught:
        optimize(request)
    assert ("lacking", f"TH0702 {caught.value.what} ({caught.value.fix})") in plan(request).rows()
    assert (caught.value.code, caught.value.status) == ("TH0702", 7)
    assert "4.18 GiB of it for weights" in caught.value.what
    assert "cpu has 3.50 GiB free; nothing was loaded" in caught.value.what
    assert "--dtype bfloat16, which needs 2.09 GiB" in caught.value.fix
    assert planned_memory(folder, dtype="bfloat16").fits


def test_inputs_of_a_small_model_that_do_not_fit_are_lacking_in_the_plan(tmp_path):
    folder = config_folder(tmp_path, SMALL)
    lacking = plan(Request(model=model_of(folder, None), batch=10**11), dry_run=True).memory_error
    assert lacking is not None
    assert "use a smaller --batch or --seq" in lacking.fix
    assert planned_memory(folder, batch=10**11).storage_note == ""


def test_modules_that_the_model_does_not_have_are_refused_in_the_plan(checkpoint):
    model = ModelRequest(str(checkpoint), device="cpu")
    with pytest.raises(UnknownName, match="no module of this LlamaForCausalLM matches 'bogus'"):
        plan(Request(model=model, without=("inductor:bogus",)), dry_run=True)
    assert plan(Request(model=model, without=("inductor:*.mlp",)), dry_run=True).memory is not None


def test_mapped_weights_that_do_not_fit_are_read_from_the_disk(checkpoint):
    memory = replace(planned_memory(checkpoint, random_weights=False), free=1 << 20)
    assert memory.fits
    assert "read from the disk" in memory.storage_note
    assert not replace(planned_memory(checkpoint), free=1 << 20).fits


def test_limit_on_addresses_counts_mapped_weights_too(checkpoint, monkeypatch):
    monkeypatch.setattr(memory_plan, "process_limits", lambda: iter([1 << 20]))
    lacking = plan(Request(model=ModelRequest(str(checkpoint), device="cpu"))).memory_error
    assert "the limits of this process allow 1.00 MiB" in lacking.what


def test_plan_of_seventy_billion_parameters_takes_no_memory_for_them(tmp_path, monkeypatch):
    seventy = Size(80, 8192, 28672, 64, 128_256)
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: 200 * GIB)
    monkeypatch.setattr(weight_lower_bound, "machines_memory", lambda: 200 * GIB)
    memory = planned_memory(config_folder(tmp_path, seventy, "bfloat16"))
    assert memory.weights == pytest.approx(132 * GIB, rel=0.1)
    assert replace(memory, free=100 * GIB).fits is False


def test_target_is_compiled_for_without_weights(tmp_path, monkeypatch):
    folder = config_folder(tmp_path / "model", SMALL, "bfloat16")

    def load(request: ModelRequest) -> None:
        raise AssertionError("nothing is to be loaded")

    monkeypatch.setattr("thunder_core.workflow.pipeline.session.session.load_model", load)
    model = ModelRequest(str(folder), random_weights=True)
    found = optimize(Request("hf-llama", model, target="sm_90", out=tmp_path / "artifact", seq=16))
    manifest = json.loads((found.artifact / "manifest.json").read_text())
    monkeypatch.undo()
    assert manifest["fingerprint"] == load_model(replace(model, device="cpu")).fingerprint
    assert manifest["target"] == "sm_90"
    assert "not loaded on this machine" in dict(plan(Request("hf-llama", model, target="sm_90")).rows())["memory"]


@pytest.mark.parametrize("limit", [700 << 20, 2 << 30])
def test_run_under_a_limit_on_addresses_ends_with_the_message(tmp_path, limit):
    folder = config_folder(tmp_path / "model", SIZES["1.1"])
    command = ["prlimit", f"--as={limit}", sys.executable, "-m", "thunder_cli.main", "optimize", str(folder)]
    done = subprocess.run(
        [*command, "--random-weights", "--device", "cpu", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "TH0702"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_allocation_beyond_the_free_memory_is_an_error_within_the_guard(monkeypatch):
    from thunder_core.workflow.models.memory import memory_guard
    from thunder_core.workflow.models.memory.free_memory import is_out_of_memory

    monkeypatch.setattr(memory_guard, "free_memory", lambda device: 256 << 20)
    with memory_guard.limit_private_memory(), pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 30, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert torch.empty(1 << 30, dtype=torch.uint8).numel() == 1 << 30
