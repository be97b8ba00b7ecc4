"""Each shipped recipe optimizes its sample: compared with eager PyTorch, degraded if the machine lacks a part."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import thunder_core as thunder
from tests.recipes.test_recipes import TINY
from thunder_core.compilation.memory import examine_memory
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import RecipeConflict
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.request.recipes import find_recipe
from thunder_recipes.hf_moe import HFMoe

# If a CUDA build of PyTorch finds a CUDA compiler and no GPU, this module warns.
NO_CUDA = "torch.utils.cpp_extension"
EXPERTS = {
    **TINY,
    "eos_token_id": 1,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}

FOR_SEVERAL_PROCESSES = {"ddp", "fsdp", "tensor-parallel"}  # tests/distributed runs them


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", sorted({*plugins.names("recipes")} - FOR_SEVERAL_PROCESSES))
@pytest.mark.usefixtures("without_kernels")
def test_a_recipe_passes_on_its_sample(name: str, tmp_path: Path) -> None:
    seq = None if name == "hf-vit" else 8  # images have no tokens
    request = Request(name, model=ModelRequest(device="cpu"), out=tmp_path / "out", seq=seq, inputs=1, benchmark=False)
    outcome = optimize(request)
    assert outcome.report.validation is not None
    assert outcome.report.validation.passed
    assert open_artifact(outcome.artifact).manifest.recipe == name


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", HFMoe.families)
def test_a_single_program_serves_every_routing(
    family: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **EXPERTS)).eval()
    compiled = thunder.compile(model, "hf-moe", symbolic=())
    for seed in range(3):
        ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            torch.testing.assert_close(compiled(input_ids=ids).logits, model(input_ids=ids).logits)
    assert thunder.cache_misses(compiled) == 1
    assert "Traceback" not in capfd.readouterr().err
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.name for record in warned} <= {NO_CUDA}, "PyTorch's refusal is logged"


def saved_bytes(recipe: object, **options: object) -> int:
    """The bytes that a training step of a small model saves for its backward."""
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)) for _ in range(4)]
    compiled = thunder.compile(torch.nn.Sequential(*blocks), recipe, **options)  # type: ignore[arg-type]
    x = torch.randn(32, 16)
    compiled(x).sum().backward()
    return int(examine_memory(compiled).saved)


@pytest.mark.usefixtures("without_kernels")
def test_adding_the_recipe_saves_memory() -> None:
    most = saved_bytes("default")
    least = saved_bytes(["max-memory-saving", "default"])
    assert least < most / 2
    assert least <= saved_bytes("max-memory-saving", budget=0.5) <= most
    with pytest.raises(RecipeConflict, match="memory_budget"):
        saved_bytes(find_recipe("max-memory-saving", {}).with_(memory_budget=1.0))


def test_overhead_is_reduced_on_cuda_alone() -> None:
    recipe = find_recipe(["hf-llama3", "reduce-overhead"], {})
    assert [*map(str, recipe.all_executors())] == [
        "sdpa",
        "packed-linear",
        "packed-attention",
        "inductor",
        "cudagraphs",
        "torch",
    ]
    if not torch.cuda.is_available():
        assert [part.part for part in recipe.skipped_parts()] == ["one launch for many kernels by CUDA graphs"]
