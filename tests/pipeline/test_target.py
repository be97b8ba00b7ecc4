"""Optimization for an absent GPU: the compiled kernels, the artifact's report, and the machines that may load it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.families import inputs_for, sample
from tests.pipeline.conftest import quick
from tests.uncompiled import leave_inductor_out
from thunder_core.backend.cache import Store
from thunder_core.compilation.compiler import trace_for
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    ArtifactForeign,
    BadOption,
    EnvironmentLacks,
    RangeNotServed,
    SpecializationWarning,
)
from thunder_core.foundation.options.target import TARGETS, parse_target
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.workflow.artifact.format.compatibility import require_architecture, require_compatible
from thunder_core.workflow.artifact.format.cubins import keep_cubins, read_cubins
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline import carry_out, plan
from thunder_core.workflow.pipeline.session.range_coverage import RangeCoverage
from thunder_core.workflow.pipeline.validate import validate_artifact

pytestmark = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
RECIPE = "hf-llama3-hopper"

# Runs in a separate process, because the interpreter, which the tests have enabled, compiles nothing.
PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.pipeline.conftest import quick
from thunder_core.workflow.pipeline import optimize
for target, dtype in (("sm_90", "bfloat16"), ("sm_80", "float32")):
    request = quick(Path(sys.argv[1]) / target, "hf-llama3-hopper", target=target)
    optimize(replace(request, model=replace(request.model, dtype=dtype)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("targets")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(made)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def hopper(folder: Path) -> Artifact:
    return open_artifact(folder / "sm_90")


KERNELS = ("rms_norm_forward_kernel", "rotary_kernel", "rms_norm_forward_kernel", "gated_forward_kernel")


@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
def test_the_artifact_holds_the_kernels_that_the_model_needs(folder: Path, target: str) -> None:
    elf = pytest.importorskip("thunder_executors.triton.elf")
    artifact = open_artifact(folder / target)
    manifest = artifact.manifest
    assert manifest.target == target
    assert [cubin.facts["entry"] for cubin in manifest.cubins] == list(KERNELS)
    assert {cubin.file for cubin in manifest.cubins} == {name for name in manifest.files if name.endswith(".cubin")}
    for cubin in manifest.cubins:
        image = artifact.content(cubin.file)
        assert image.startswith(b"\x7fELF")
        assert elf.architecture_of(image) == cubin.facts["target"] == target
        assert cubin.executor == "triton"


def test_artifact_for_a_target_is_pending_validation(hopper: Artifact) -> None:
    report = json.loads((hopper.folder / "report.json").read_text())
    assert hopper.manifest.validation == report["validation_state"] == "pending"
    assert report["validation"] is report["benchmark"] is None
    assert report["model"]["device"] == hopper.manifest.source["device"] == "cuda"
    assert report["degraded"] == []
    assert note_on_kernels(hopper, len(KERNELS)) in report["model"]["notes"]
    for page in ("report.md", "report.html"):
        assert "alidation pending" in (hopper.folder / page).read_text()


def note_on_kernels(artifact: Artifact, of_triton: int) -> str:
    """The note on kernels. Code for all sizes comes from the cache, so Inductor's count depends on earlier sizes."""
    images_of = plugins.import_object("thunder_executors.inductor.launch:images_of")
    libraries = [(artifact.folder / name).read_bytes() for name in artifact.manifest.files if name.endswith(".cubins")]
    of_inductor = len({image for library in libraries for _, image in images_of(library)})
    assert of_inductor
    counts = sorted({"triton": of_triton, "inductor": of_inductor}.items(), key=lambda pair: -pair[1])
    parts = ", ".join(f"{name} {count}" for name, count in counts)
    return f"{of_triton + of_inductor} kernels compiled for sm_90 ({parts}); nothing was run"


def test_everything_is_on_the_gpu_and_the_executors_have_their_lines(hopper: Artifact) -> None:
    program, masked = hopper.manifest.programs
    assert program.devices == masked.devices == ("cuda:0",)
    last = [stage for stage in program.stages if stage.trace == "computation"][-1]
    text = hopper.text(last.file)
    graphs = [line for line in hopper.listing(last).lines if line.executor == "cudagraphs"]
    claimed = [part.executor for line in graphs for part in line.parts if part.executor in ("triton", "sdpa")]
    assert {name: claimed.count(name) for name in set(claimed)} == {"triton": 1 + 4 + 2 + 2, "sdpa": 2}
    assert "[triton]" in text
    assert "torch.rsqrt" not in "".join(line for line in text.splitlines() if not line.strip().startswith("#"))


def test_prompts_without_padding_need_no_mask_and_other_prompts_have_a_program(hopper: Artifact) -> None:
    """The first program is that of the example, which has no mask; the second one reads any mask."""
    assert hopper.manifest.example == ("input_ids",)
    assert hopper.manifest.random_inputs["padded"] == 0
    calls = [[line for line in computation_of(hopper, number).splitlines() if "sdpa." in line] for number in (0, 1)]
    assert [len(lines) for lines in calls] == [2, 2]
    assert all("attn_mask=None" in line and "is_causal=True" in line for line in calls[0])
    assert all("attn_mask=None" not in line and "is_causal=False" in line for line in calls[1])
    assert len({re.search(r"term=(\w+)", line)[1] for line in calls[1]}) == 1  # type: ignore[index]


def test_loading_without_the_target_gpu_is_refused(hopper: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ArtifactForeign, match="run on cuda:0, which this machine"):
        thunder.load(hopper.folder, sample("llama", "bfloat16").model)
    with pytest.raises(ArtifactForeign, match="run on cuda:0, which this machine"):
        thunder.load(hopper.folder)


def test_another_gpu_is_refused_by_name(hopper: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Somebody's GPU")
    with pytest.raises(ArtifactForeign, match=r"machine code for sm_90, but the GPU Somebody's GPU is sm_86") as caught:
        require_architecture(hopper.manifest)
    assert "--target sm_86" in caught.value.fix
    second = torch.device("cuda", 1)  # the device of the programs decides, not the current device
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device == second else (8, 6))
    there = tuple(program.model_copy(update={"devices": ("cuda:1",)}) for program in hopper.manifest.programs)
    require_architecture(hopper.manifest.model_copy(update={"programs": there}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    require_architecture(hopper.manifest)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    require_compatible(hopper.manifest)
    with pytest.raises(ArtifactForeign, match="machine code for sm_80"):
        require_compatible(open_artifact(hopper.folder.parent / "sm_80").manifest)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    """The kept kernels, launched with a stand-in for the driver."""
    launch = pytest.importorskip("thunder_executors.triton.launch")
    driving = pytest.importorskip("thunder_executors.triton.driver")
    monkeypatch.setattr(driving, "driver", lambda: driving.Driver(None))
    before = dict(launch.STORED_KERNELS)
    launch.STORED_KERNELS.clear()
    yield launch.STORED_KERNELS
    launch.STORED_KERNELS.clear()
    launch.STORED_KERNELS.update(before)


def test_the_model_launches_only_kept_kernels(
    hopper: Artifact, kept: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specializations of real tensors here equal those that were compiled from tensors without data."""
    loaded = sample("llama", "bfloat16")
    inputs = inputs_for(loaded, batch=1, seq=8)
    compiled = thunder.jit(loaded.model, executors=["triton"])
    with torch.no_grad():
        compiled(**inputs)
    keep_cubins(read_cubins(hopper))
    assert len(kept) == len(KERNELS)
    wanted, launched = [], []
    for specialization in kept:
        kept[specialization] = lambda launch: launched.append(launch.specialization)
    launch: Any = plugins.import_object("thunder_executors.triton.launch:Launch")
    run = launch.run
    monkeypatch.setattr(launch, "run", lambda self: (wanted.append(self.specialization), run(self)))
    with torch.no_grad():
        compiled(**inputs)
    assert launched == wanted
    assert set(launched) == set(kept)


def test_a_damaged_kernel_is_refused(hopper: Artifact, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(hopper.folder, copy)
    path = copy / hopper.manifest.cubins[0].file
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactDamaged, match=path.name):
        open_artifact(copy)


def test_the_kernels_come_from_the_cache(folder: Path) -> None:
    labels = [record.label for record in Store().entries() if record.executor == "triton"]
    assert {"rotary_kernel of bf16", "gated_forward_kernel of fp32"} <= set(labels)


# ---- before anything is compiled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "90", "sm_", "sm_9", "sm_99", "sm_90a", "SM_90", "gfx90a", "sm_75"])
def test_an_unknown_architecture_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="cannot compile kernels for this architecture") as caught:
        parse_target(name)
    assert "sm_80" in caught.value.fix
    assert "sm_90" in caught.value.fix


def test_the_plan_leaves_out_parts_that_cannot_run(out: Path) -> None:
    made = plan(quick(out, RECIPE, target="sm_90"))
    assert made.stages == ("load", "check the recipe", "trace", "transform", "compile", "write")
    rows = dict(made.rows())
    assert "degraded" not in rows
    assert rows["target"].startswith("sm_90: ")
    assert rows["validation"].startswith("pending: ")
    assert rows["task"].endswith("on cuda")
    data = made.as_data()
    assert (data["target"], data["validation"], data["device"]) == ("sm_90", "pending", "cuda")


def test_an_older_gpu_degrades_the_recipe_for_hopper(out: Path) -> None:
    made = plan(quick(out, RECIPE, target="sm_80"))
    assert {part.reason for part in made.prepared.degraded} == {"sm_80 has compute capability 8.0"}
    with pytest.raises(EnvironmentLacks, match="compute capability 8"):
        plan(quick(out, RECIPE, target="sm_80", strict=True))
    plan(quick(out, RECIPE, target="sm_100", strict=True))


def test_requirements_are_checked_for_the_target_alone() -> None:
    assert [name for name in TARGETS if Cuda((9, 0)).missing_for(name) is None] == [
        *("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
    ]


def test_the_interpreter_is_no_compiler(out: Path) -> None:
    interpreted = plugins.import_object("thunder_executors.triton.launch:INTERPRETED")
    if not interpreted:
        pytest.skip("for the interpreter")
    made = plan(quick(out, RECIPE, target="sm_90"))
    assert [executor.reason for executor in made.prepared.executors if executor.name == "triton"] == [
        "TRITON_INTERPRET is set, and Triton's interpreter cannot compile"
    ]
    carry_out(made)
    manifest = open_artifact(out).manifest
    assert (manifest.validation, manifest.cubins, manifest.target) == ("pending", (), "sm_90")


def test_one_program_serves_caches_of_all_lengths(out: Path) -> None:
    """The model has no weights here, so the cache that it is called with has none of its values either."""
    ranges = {"seq": (2, 64), "cache": (1, 64)}
    carry_out(plan(quick(out, "hf-llama", target="sm_90", dynamic=ranges)))
    manifest = open_artifact(out).manifest
    (program,) = manifest.programs
    assert (manifest.dynamic, program.devices) == (ranges, ("cuda:0",))
    numbers = {constraint.number for constraint in program.constraints}
    assert "kwargs['input_ids'].size(1)" in numbers
    cache = cache_argument(sample("llama").model)
    assert any(number.startswith(f"kwargs[{cache!r}].layers") for number in numbers)
    assert "no size was tried" in (out / "report.json").read_text()


def test_lengths_of_prompts_are_served_by_a_program_without_and_one_with_a_mask(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_inductor_out(monkeypatch)
    carry_out(plan(quick(out, RECIPE, target="sm_90", dynamic={"seq": (2, 64)})))
    artifact = open_artifact(out)
    calls = [[line for line in computation_of(artifact, number).splitlines() if "sdpa." in line] for number in (0, 1)]
    assert all("attn_mask=None" in line and "is_causal=True" in line for line in calls[0])
    assert all("term=" in line for line in calls[1])
    (length,) = artifact.manifest.programs[0].constraints
    assert length.number == "kwargs['input_ids'].size(1)"


class Widens(torch.nn.Module):
    """A layer that computes something else for long rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] < 16 else x + 1


def test_a_range_that_one_program_does_not_serve_is_refused() -> None:
    compiled = thunder.jit(Widens(), symbolic={"x.size(0)": (2, 64)})
    with pytest.warns(SpecializationWarning, match="does not serve all of"):
        program, _ = trace_for(compiled, torch.device("cuda"), (torch.ones(5),), {}, target="sm_90")
    session: Any = SimpleNamespace(compiled=compiled)
    coverage = RangeCoverage(session, {"seq": (2, 64)}, InputSize(1, 5))
    with pytest.raises(RangeNotServed, match="needs another program"):
        coverage.coverage_proof()
    assert program.shortfalls


def test_included_weights_are_for_the_gpu_and_are_not_validated_on_the_cpu(out: Path) -> None:
    carry_out(plan(quick(out, "hf-llama", target="sm_90", include_weights=True)))
    weights = open_artifact(out).manifest.weights
    assert weights
    assert {facts.device for facts in weights.values()} == {"cuda"}
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactForeign, match="run on cuda:0"):
            thunder.load(out)
        with pytest.raises(ArtifactForeign, match="run on cuda:0"):
            validate_artifact(out)
        assert open_artifact(out).manifest.validation == "pending"


def test_a_program_for_another_machine_is_kept_and_does_not_run() -> None:
    loaded = sample("llama")
    compiled = thunder.jit(loaded.model)
    with torch.no_grad():
        program, kernels = trace_for(
            compiled, torch.device("cuda"), (), inputs_for(loaded, batch=1, seq=4), target="sm_90"
        )
    assert kernels == ()
    assert thunder.last_traces(compiled)[-1] is program.last("computation")
    assert (thunder.cache_hits(compiled), thunder.cache_misses(compiled)) == (0, 1)


def computation_of(artifact: Artifact, program: int) -> str:
    """The text of the last computation of an artifact's program."""
    stages = artifact.manifest.programs[program].stages
    return artifact.text([stage for stage in stages if stage.trace == "computation"][-1].file)


def test_a_prompt_without_a_mask_is_one_graph_with_causal_attention() -> None:
    """The empty tensors of the dynamic cache are operations of the graph, and no mask is computed."""
    loaded = sample("llama", "bfloat16")
    compiled = thunder.jit(loaded.model, executors=["sdpa", "cudagraphs", "torch"])
    inputs = {"input_ids": inputs_for(loaded, batch=1, seq=16)["input_ids"]}
    with torch.no_grad():
        program, _ = trace_for(compiled, torch.device("cuda"), (), inputs, target="sm_90")
    computation = program.last("computation")
    assert [bsym.executor for bsym in computation.bound_symbols if bsym.executor] == ["cudagraphs"]
    calls = [line for line in program.source("computation").text.splitlines() if "sdpa.attention(" in line]
    assert len(calls) == loaded.config.num_hidden_layers
    assert all("attn_mask=None" in call and "is_causal=True" in call for call in calls)


# ---- on the GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow
def test_on_the_gpu_the_artifact_loads_and_equals_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact is made for this machine's GPU as if it were absent, then loaded, run and compared with eager."""
    import triton.runtime.jit

    target = "sm_{}{}".format(*torch.cuda.get_device_capability())
    request = quick(tmp_path / "here", RECIPE, target=target)
    request = replace(request, model=replace(request.model, dtype="float32"))
    artifact = carry_out(plan(request)).artifact
    loaded = replace(sample("llama"), model=sample("llama").model.cuda())
    compiled = thunder.load(artifact, loaded.model, strict=True)
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", lambda *_, **__: pytest.fail("Triton launches it"))
    inputs = {name: tensor.cuda() for name, tensor in inputs_for(loaded, batch=1, seq=8).items()}
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, loaded.model(**inputs).logits, rtol=1e-3, atol=1e-3)
