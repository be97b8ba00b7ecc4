"""Whole optimizations with recipes that quantize: calibrated, evaluated, refused, saved, trained, generating."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import thunder_core as thunder
from tests.cli.small import save_small_model
from tests.pipeline.conftest import Watcher, quick
from tests.pipeline.test_dynamic import python_path
from tests.processes import run_python
from thunder_core.backend.quantization.layers import QuantizedLayer
from thunder_core.foundation.errors import (
    BadData,
    BadOption,
    BadQuantization,
    EnvironmentLacks,
    ModelNotFound,
    QualityLost,
    ThunderError,
    WrongInputs,
)
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, bench, optimize, plan
from thunder_core.workflow.pipeline.bench import bench_artifact
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.session.progress import CALIBRATE
from thunder_core.workflow.validation.quality import quantized_layers

pytestmark = pytest.mark.usefixtures("without_kernels")

QUICK: dict[str, Any] = {"seq": 8, "inputs": 1, "benchmark": False}
GROUPS = ("hf-llama", "int4-weight-only")
KEPT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/bin"}


def unmeasured_request(out: Path | None, recipe: object = GROUPS, sample: str = "llama", **changes: object) -> Request:
    """A request that measures nothing."""
    return quick(out, recipe, sample, **{"benchmark": False, "inputs": 1, **changes})


def elsewhere(code: str, artifact: Path, folder: Path) -> None:
    """Run code in another process that gets the artifact and has no compiler."""
    places = {"THUNDER_CACHE_DIR": str(folder / "cache"), "CXX": "/bin/false", "PYTHONPATH": python_path()}
    done = run_python("-c", code, artifact, cwd=Path.cwd(), env={**KEPT, **places})
    assert done.stdout == "served\n", done.stderr


def test_a_worse_model_than_the_bound_allows_is_refused(out: Path) -> None:
    with pytest.raises(QualityLost, match=r"hf-llama \+ int4-weight-only differs .* by more than the bound") as caught:
        optimize(unmeasured_request(out, options={"error": 0.01}))
    assert caught.value.code == "TH0407"
    assert "--skip-layers auto" in caught.value.fix
    assert not caught.value.report.passed
    assert list(out.parent.iterdir()) == []


def test_layers_are_left_out_until_the_bound_holds(out: Path) -> None:
    report = optimize(unmeasured_request(out, options={"error": 0.1}, skip_layers="auto")).report.quantization
    assert report.passed
    assert report.error <= 0.1
    assert 0 < len(report.skipped) < 8
    assert not {layer.name for layer in report.layers} & {*report.skipped}
    loaded = thunder.load(out, strict=True)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        loaded(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert {*quantized_layers(loaded)} == {layer.name for layer in report.layers}


def test_a_bound_that_no_choice_of_layers_meets_is_refused(out: Path) -> None:
    with pytest.raises(QualityLost):
        optimize(unmeasured_request(out, options={"error": 1e-9}, skip_layers="auto"))
    assert list(out.parent.iterdir()) == []


def test_skipping_the_only_quantized_layer_is_refused(out: Path) -> None:
    options = {"error": 1e-9, "targets": "model.layers.0.mlp.down_proj", "embeddings": False}
    with pytest.raises(QualityLost):
        optimize(unmeasured_request(out, options=options, skip_layers="auto"))
    assert list(out.parent.iterdir()) == []


def test_weights_are_calibrated_with_random_inputs_and_with_a_file(out: Path, tmp_path: Path) -> None:
    plain = optimize(unmeasured_request(out)).report.quantization
    assert plain.calibrated == ""
    kept = (out / "weights" / "model.safetensors").stat().st_size
    assert 0.9 * kept < plain.bytes < 0.22 * plain.float_bytes
    watcher = Watcher()
    drawn = optimize(unmeasured_request(out, calibrate="8", force=True), watcher).report.quantization
    assert (drawn.calibrated, watcher.moves[CALIBRATE][-1]) == ("8 random inputs", (7, 8))
    assert drawn.error < plain.error
    with pytest.raises(WrongInputs, match="with data that the artifact lacks"):
        thunder.load(out, load_model(ModelRequest(sample=SAMPLES["llama"])).model)
    file = tmp_path / "samples.safetensors"
    save_file({"input_ids": torch.randint(3, 500, (6, 8), generator=torch.Generator().manual_seed(0))}, file)
    given = optimize(unmeasured_request(out, calibrate=str(file), force=True)).report.quantization
    assert given.calibrated.startswith("samples.safetensors:")
    assert given.error < plain.error


IDS = torch.randint(3, 500, (4, 8), generator=torch.Generator().manual_seed(0))
FILES: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "other names": ({"pixel_values": torch.zeros(4, 3, 8, 8)}, "`pixel_values`, which it does not accept"),
    "names beside": ({"input_ids": IDS, "pixels": torch.zeros(4, 3)}, "`pixels`, which it does not accept"),
    "too many dimensions": ({"input_ids": IDS[None]}, r"has the shape \[4, 8\], but a sample is one list of tokens"),
    "another mask": ({"input_ids": IDS, "attention_mask": torch.ones(4, 7).long()}, r"of shape \[7\], and .*\[8\]"),
    "another number of samples": (
        {"input_ids": IDS, "attention_mask": IDS[:3].clone()},
        "different numbers of samples",
    ),
    "no samples": ({"input_ids": IDS[:0]}, "has no samples"),
    "nothing": ({}, "has no samples"),
    "numbers of another kind": ({"input_ids": IDS.float()}, "tokens are lists of integers"),
    "tokens of another vocabulary": ({"input_ids": IDS + 1000}, "the vocabulary has 512"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_for_the_model_is_refused(name: str, out: Path, tmp_path: Path) -> None:
    arrays, message = FILES[name]
    save_file(arrays, tmp_path / "samples.safetensors")
    with pytest.raises(BadData, match=message) as caught:
        optimize(unmeasured_request(out, calibrate=str(tmp_path / "samples.safetensors")))
    assert caught.value.code == "TH0221"
    assert list(out.parent.iterdir()) == []


REFUSED: dict[str, tuple[dict[str, Any], type[ThunderError], str]] = {
    "no file": ({"calibrate": "nowhere.safetensors"}, BadData, "--calibrate nowhere.safetensors does not exist"),
    "no inputs": ({"calibrate": "0"}, BadOption, "--calibrate is 0"),
    "calibrated in vain": (
        {"recipe": "int8-dynamic", "calibrate": "2"},
        BadOption,
        "--calibrate has no effect for int8-dynamic",
    ),
    "nothing to calibrate": ({"recipe": "default", "calibrate": "2"}, BadOption, "default does not"),
    "no layers to leave out": ({"recipe": "default", "skip_layers": "auto"}, BadOption, "default does not"),
    "no such targets": ({"options": {"targets": "*.mlp.*,*.atention.*"}}, BadQuantization, "targets='*.atention.*'"),
    "no such layers to skip": ({"options": {"skip": "head"}}, BadQuantization, "no layer's name matches skip='head'"),
    "no such groups": ({"options": {"group_size": 48}}, BadQuantization, "does not divide the 64 columns of model."),
    "no layers left": ({"options": {"skip": "*"}}, BadQuantization, "skips all layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_requests_are_refused_and_nothing_is_written(name: str, out: Path) -> None:
    changes, error, message = REFUSED[name]
    with pytest.raises(error) as caught:
        optimize(unmeasured_request(out, **{"recipe": GROUPS, **changes}))
    assert message in caught.value.what
    assert caught.value.fix
    assert caught.value.code == {BadData: "TH0221", BadOption: "TH0201", BadQuantization: "TH0224"}[error]
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("recipe", ["int8-dynamic", "bf16"])
def test_a_processor_without_the_instructions_is_reported_or_refused(
    recipe: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunder_core.tracing.extension.requirement.instruction_sets", lambda: frozenset(["sse4_2"]))
    (lack,) = optimize(unmeasured_request(out, ("hf-llama", recipe), force_slow=True)).report.degraded
    assert "with the processor's own instructions" in lack.part
    assert lack.reason.startswith("the processor has none of")
    with pytest.raises(EnvironmentLacks, match="the processor has none of"):
        optimize(unmeasured_request(out, ("hf-llama", recipe), strict=True, force=True, force_slow=True))


@pytest.mark.parametrize(("recipe", "sample"), [("int8-dynamic", "gpt2"), ("int4-weight-only", "bert")])
def test_programs_with_quantized_weights_serve_ranges(recipe: str, sample: str, out: Path) -> None:
    ranges = {"seq": (2, 24), "batch": (1, 2)}
    optimize(unmeasured_request(out, ("hf-transformers", recipe), sample, dynamic=ranges, force_slow=True))
    loaded = thunder.load(out, strict=True)
    eager = thunder.load(out)._thunder.subject
    assert any(isinstance(module, QuantizedLayer) for module in eager.modules())
    for batch, length in ((1, 2), (2, 19)):
        ids = torch.arange(3, 3 + batch * length).view(batch, length)
        with torch.no_grad():
            expected = eager(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            found = loaded(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.usefixtures("one_thread")
def test_an_artifact_is_measured_against_the_float_model_and_against_the_quantized_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_small_model(tmp_path / "model")
    out = tmp_path / "out"
    optimize(
        Request(("hf-llama", "int8-dynamic"), ModelRequest(str(tmp_path / "model")), out=out, force_slow=True, **QUICK)
    )
    called: dict[str, torch.nn.Module] = {}
    for name in ("eager", "prepared"):
        monkeypatch.setitem(bench.CONTENDERS, name, lambda model, name=name: called.setdefault(name, model))
    rounds = {"runs": 2, "warmup": 0}
    report = bench_artifact(out, BenchRequest(against=("eager", "prepared"), **rounds)).reports[0]
    assert [candidate.name for candidate in report.candidates] == ["eager", "prepared", "thunder"]
    assert not quantized_layers(called["eager"])
    assert quantized_layers(called["prepared"])
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelNotFound) as caught:
        bench_artifact(out, BenchRequest(**rounds))
    assert caught.value.fix.endswith("--against prepared")
    assert bench_artifact(out, BenchRequest(against=("prepared",), **rounds)).reports
    optimize(quick(out, "hf-llama", **{**QUICK, "force": True}))
    with pytest.raises(BadOption, match="--against prepared is the same as eager: hf-llama does not prepare the model"):
        bench_artifact(out, BenchRequest(against=("prepared",), **rounds))


GENERATES = """
import sys, torch, thunder_core as thunder
loaded = thunder.load(sys.argv[1], strict=True)
eager = thunder.load(sys.argv[1])._thunder.subject
assert any(buffer.dtype == torch.int8 for buffer in eager.buffers())
for length in (1, 6):
    prompt = torch.arange(3, 3 + length)[None]
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 4, "do_sample": False}
    assert torch.equal(loaded.generate(prompt, **options), eager.generate(prompt, **options))
assert "thunder_core.compilation.compiler" not in sys.modules, "something was compiled"
print("served")
"""


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.DegradedWarning")
def test_a_fresh_process_generates_with_quantized_weights(out: Path, tmp_path: Path) -> None:
    model = ModelRequest(sample=SAMPLES["llama"], task="generate")
    lengths = {"prompt_length": 6, "new_tokens": 4, "batch": 1, "benchmark": False}
    done = optimize(Request(("hf-llama", "int8-weight-only"), model, out=out, **lengths))
    assert done.report.generation.passed
    assert done.report.quantization.passed
    elsewhere(GENERATES, out, tmp_path)


TRAINS = """
import sys, torch, thunder_core as thunder
from thunder_core.workflow.artifact.replay import example_of
loaded = thunder.load(sys.argv[1], strict=True)
batch = example_of(sys.argv[1])
adapters = {name: one for name, one in loaded.named_parameters() if one.requires_grad}
assert all(name.rpartition(".")[2] in ("lora_a", "lora_b") for name in adapters), adapters.keys()
codes = {name: one.clone() for name, one in loaded.named_buffers()}
optimizer = torch.optim.AdamW(adapters.values(), lr=3e-3)
losses = []
for _ in range(10):
    loss = loaded(**batch).loss
    loss.backward()
    assert {name for name, one in loaded.named_parameters() if one.grad is not None} == adapters.keys()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.9 * losses[0], losses
assert all(torch.equal(one, codes[name]) for name, one in loaded.named_buffers())
assert "thunder_core.compilation.compiler" not in sys.modules, "something was compiled"
print("served")
"""


@pytest.mark.parametrize("sample", ["llama", "gpt2"])
def test_a_fresh_process_trains_adapters_with_quantized_weights(sample: str, out: Path, tmp_path: Path) -> None:
    report = optimize(unmeasured_request(out, ("hf-transformers", "nf4-lora"), sample, train=True)).report
    gradients = [output.name for output in report.validation.outputs if output.name.endswith(".grad")]
    assert gradients
    assert all(name.endswith((".lora_a.grad", ".lora_b.grad")) for name in gradients)
    assert {stage.trace for program in open_artifact(out).manifest.programs for stage in program.stages} >= {"backward"}
    elsewhere(TRAINS, out, tmp_path)


def without_products_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without 8-bit integer products."""
    monkeypatch.setattr("thunder_core.tracing.extension.requirement.instruction_sets", lambda: frozenset({"sse4_2"}))


def test_a_sum_with_a_recipe_that_is_slower_than_eager_here_is_refused(monkeypatch, tmp_path):
    without_products_of_integers(monkeypatch)
    model = ModelRequest(sample=SAMPLES["llama"], device="cpu")
    request = Request(("hf-llama", "int8-dynamic"), model, out=tmp_path / "out")
    with pytest.raises(EnvironmentLacks, match="would be slower than eager PyTorch here") as refused:
        plan(request)
    assert "use int8-weight-only instead, or set --force-slow" in refused.value.fix
    assert plan(dataclasses.replace(request, force_slow=True)).prepared.recipe.name == "hf-llama + int8-dynamic"
    monkeypatch.setattr("thunder_core.tracing.extension.requirement.instruction_sets", lambda: frozenset({"avx_vnni"}))
    assert plan(request).prepared.degraded == ()


def test_the_plan_warns_of_a_recipe_that_is_slower_than_eager_here(monkeypatch, tmp_path):
    without_products_of_integers(monkeypatch)
    request = Request("int8-dynamic", ModelRequest(sample=SAMPLES["llama"], device="cpu"), out=tmp_path / "out")
    (part,) = plan(request).prepared.degraded
    assert "expect it to be slower than eager PyTorch here, and use int8-weight-only" in part.fix
