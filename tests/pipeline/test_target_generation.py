"""`--target` with `--task generate`: prefill and decode are traced for an absent GPU, on a model without data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from tests.generation.models import Uncompiled
from tests.pipeline.test_generation import request_of
from tests.uncompiled import leave_inductor_out
from thunder_core.compilation.compiler.for_device import DeviceOrMeta, devices_read_as
from thunder_core.foundation.errors import ArtifactForeign, BadOption, CannotGenerate
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.loading import load
from thunder_core.workflow.pipeline import optimize, plan
from thunder_core.workflow.pipeline.generation.values_without_device import token_within_text, values_on_meta

HERE = {"validate": False, "benchmark": False}
SHORT = {"prompt_length": 6, "new_tokens": 4, "batch": 1}


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The artifact of a Llama that generates on a Hopper GPU, without kernels of Inductor."""
    folder = tmp_path_factory.mktemp("target") / "hopper"
    with pytest.MonkeyPatch.context() as patch:
        leave_inductor_out(patch)
        request = request_of(folder, "llama3", "hf-llama3-hopper", target="sm_90", **SHORT)
        optimize(request)
    return open_artifact(folder)


def test_prefill_and_decode_are_programs_for_the_gpu(hopper: Artifact) -> None:
    manifest = hopper.manifest
    assert (manifest.target, manifest.validation) == ("sm_90", "pending")
    assert manifest.generation is not None
    initialized = [
        "True" in words
        for program in manifest.programs
        for path, words in program.paths_and_words
        if path.endswith("layers[0].is_initialized")
    ]
    assert sorted(initialized) == [False, False, True]  # prompts of several tokens, and of one token; one new token
    decode = manifest.programs[initialized.index(True)]
    assert decode.devices == ("cuda:0",)
    words = [words for path, words in decode.paths_and_words if path.endswith("layers[0].device")]
    assert words == ["was device(type='cuda', index=0)"]


def test_decoding_a_token_is_one_graph(hopper: Artifact) -> None:
    for program in hopper.manifest.programs:
        last = [stage for stage in program.stages if stage.trace == "computation"][-1]
        lines = [line for line in hopper.listing(last).lines if line.executor]
        if program.devices == ("cuda:0",):
            assert [line.executor for line in lines] == ["cudagraphs"]


def test_prompts_are_attended_to_causally_by_groups_and_without_a_mask(hopper: Artifact) -> None:
    """The other programs read one token, whose keys and values are not repeated either."""
    calls = [
        [line for line in hopper.text(stage.file).splitlines() if "sdpa.attention(" in line]
        for program in hopper.manifest.programs
        for stage in [stage for stage in program.stages if stage.trace == "computation"][-1:]
    ]
    prompts = [lines for lines in calls if any("is_causal=True" in line for line in lines)]
    assert len(prompts) == 1
    assert all("attn_mask=None" in line and "enable_gqa=True" in line for line in prompts[0])


def test_artifact_for_an_absent_gpu_is_not_loaded_here(hopper: Artifact) -> None:
    with pytest.raises(ArtifactForeign, match="cuda"):
        load(hopper.folder)


@pytest.mark.parametrize("sample", ["mistral", "t5"])
def test_programs_constrain_the_sizes_of_the_programs_of_this_machine(sample: str, tmp_path: Path) -> None:
    """`mistral` has a sliding window, `t5` an encoder and two caches; float32 is the dtype of both runs."""
    optimize(request_of(tmp_path / "there", sample, Uncompiled, target="sm_90", **SHORT))
    optimize(request_of(tmp_path / "here", sample, Uncompiled, **SHORT, **HERE))
    there, here = (open_artifact(tmp_path / name).manifest for name in ("there", "here"))
    assert {device for program in there.programs for device in program.devices} >= {"cuda:0"}
    assert len(there.programs) == len(here.programs)
    for absent, present in zip(there.programs, here.programs, strict=True):
        assert {c.number for c in absent.constraints} == {c.number for c in present.constraints}


def test_weights_in_the_artifact_are_refused_with_a_way_out() -> None:
    with pytest.raises(BadOption, match="--include-weights exclude each other") as caught:
        plan(request_of(None, target="sm_90", include_weights=True))
    assert "checkpoint" in caught.value.fix


def test_the_plan_names_the_target_and_the_lengths() -> None:
    rows = dict(plan(request_of(None, target="sm_90")).rows())
    assert rows["target"].startswith("sm_90")
    assert rows["generation"].startswith("batches of 1 to 3 prompts")


def test_a_model_that_fails_on_the_meta_device_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no meta kernel")

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", fail)
    with pytest.raises(CannotGenerate, match=r"fails in eager PyTorch on the meta device .*no meta kernel"):
        optimize(request_of(tmp_path / "out", target="sm_90", **SHORT))


# ---- values on the meta device ------------------------------------------------------------------------------------

PROGRAMS: dict[str, Callable[[str], Any]] = {
    "numbers": lambda device: torch.tensor([3, 1, 2], device=device),
    "arithmetic": lambda device: torch.arange(6, device=device).view(2, 3).cumsum(-1) - 1,
    "an in-place operation on a view": lambda device: views(device),
    "a mask": lambda device: torch.ones(2, 4, dtype=torch.long, device=device).tril().bool(),
    "sizes that depend on values": lambda device: torch.tensor([0, 5, 0, 7], device=device).nonzero(),
    "a copy from the CPU": lambda device: torch.arange(4).to(device) * 2,
    "a copy into a tensor": lambda device: torch.zeros(3, dtype=torch.int64, device=device).copy_(torch.arange(3)),
    "a mask as an index": lambda device: numbers(device)[numbers(device) > 3],
    "different numbers": lambda device: torch.stack(numbers(device).unique(return_counts=True)),
    "repeated numbers": lambda device: numbers(device).repeat_interleave(numbers(device)),
    "a write by a mask": lambda device: write_by_mask(numbers(device)),
    "writes to several tensors": lambda device: incremented(numbers(device)),
    "writes to new memory": lambda device: torch.empty(4, dtype=torch.int64, device=device).fill_(3),
    "comparisons": lambda device: torch.isin(torch.arange(4, device=device), torch.tensor([2], device=device)),
}


def numbers(device: str) -> torch.Tensor:
    return torch.tensor([5, 2, 5, 4], device=device)


def write_by_mask(numbers: torch.Tensor) -> torch.Tensor:
    numbers[numbers > 4] = 1
    return numbers


def incremented(numbers: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([numbers[:2], numbers[2:]], 3)
    return numbers


def views(device: str) -> torch.Tensor:
    numbers = torch.zeros(2, 3, dtype=torch.int64, device=device)
    numbers[0].add_(torch.arange(3, device=device))
    return numbers


@pytest.mark.parametrize("name", PROGRAMS)
def test_integers_on_the_meta_device_have_the_values_of_the_cpu(name: str) -> None:
    with values_on_meta():
        result = PROGRAMS[name]("meta")
        assert result.device.type == "meta"
        values = result.cpu()
    assert torch.equal(values, PROGRAMS[name]("cpu"))


def test_unknown_integers_have_the_given_value_and_floats_stay_without_data() -> None:
    with values_on_meta(unknown=7):
        weights = torch.empty(4, 4, device="meta")
        assert int((weights @ weights).argmax()) == 7
        assert not bool((weights > 0).any())
        with pytest.raises(TypeError, match="meta"):
            weights.numpy()


# Writes to four integers whose new values are unknown.
UNKNOWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "a failure on the CPU": lambda numbers: numbers.index_copy_(
        0, torch.tensor([9, 9, 9, 9], device="meta"), torch.ones_like(numbers)
    ),
    "through a view": lambda numbers: numbers.view(2, 2).index_copy_(
        0, torch.tensor([9, 9], device="meta"), torch.ones(2, 2, dtype=torch.int64, device="meta")
    ),
    "random numbers": lambda numbers: numbers.random_(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_written_values_are_unknown_if_the_cpu_cannot_compute_them(name: str) -> None:
    with values_on_meta(unknown=7):
        written = numbers("meta")
        UNKNOWN[name](written)
        assert written.tolist() == [7, 7, 7, 7]


def test_integers_in_new_memory_and_random_integers_are_unknown() -> None:
    with values_on_meta(unknown=7):
        like = numbers("meta")
        for new in (torch.empty_like(like), like.new_empty(4), torch.randint(9, (4,), device="meta")):
            assert new.tolist() == [7, 7, 7, 7]


def test_a_float_that_was_read_stays_unknown() -> None:
    with values_on_meta(unknown=7):
        weights = torch.empty(4, device="meta")
        weights.cpu()
        assert int(weights.argmax()) == 7


@pytest.mark.parametrize(("end", "token"), [(None, 0), (2, 0), (0, 1), ([0, 1, 3], 2)])
def test_the_unknown_token_is_no_end_of_text_token(end: Any, token: int) -> None:
    assert token_within_text(SimpleNamespace(eos_token_id=end)) == token


def test_objects_store_the_device_only_while_a_program_is_traced() -> None:
    class Layer:
        def __init__(self) -> None:
            self.device, self.other = torch.device("meta"), torch.device("cpu")

    layer = Layer()
    arguments = ((), {"cache": [layer, {"again": layer}]})
    with devices_read_as(torch.device("cuda"), arguments):
        assert (layer.device, layer.other) == (torch.device("cuda", 0), torch.device("cpu"))
    assert layer.device == torch.device("meta")


def test_the_meta_device_stands_for_the_gpu_alone() -> None:
    gpu = DeviceOrMeta(torch.device("cuda", 0))
    assert torch.device("meta") == gpu
    assert torch.device("cuda", 0) == gpu
    assert torch.device("cpu") != gpu
    assert torch.device("cuda", 1) != gpu
