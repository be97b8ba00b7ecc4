"""Recipes for parallel training: ten steps equal PyTorch's own, and the trace shows when collectives begin and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thunder_core as thunder
from tests.distributed.ranks import Ranks
from thunder_core.foundation.errors import OutsideProcessGroup

ACCUMULATED = "tests.distributed.recipes.accumulated"
SAVED = "tests.distributed.recipes.saved"
SCALED = "tests.distributed.recipes.scaled"
PARALLEL = "tests.distributed.recipes.tensor_parallel"
COMMANDS, MORE_COMMANDS = "tests.distributed.commands.commands", "tests.distributed.commands.more_commands"
REPLICATED, SHARDED = "tests.distributed.recipes.training", "tests.distributed.recipes.sharded_training"
CASES: dict[str, tuple[Any, ...]] = {
    "ddp equals PyTorch with SGD in float64": (REPLICATED, "ddp_equals_pytorch", "float64", "sgd"),
    "ddp equals PyTorch with AdamW in bfloat16": (REPLICATED, "ddp_equals_pytorch", "bfloat16", "adamw"),
    "ddp accumulates gradients without synchronization": (REPLICATED, "ddp_accumulates_without_synchronization"),
    "ddp gives buffers the values of the first rank": (REPLICATED, "ddp_broadcasts_buffers"),
    "ddp reduces buckets early and waits late": (REPLICATED, "ddp_reduces_buckets_early_and_waits_late"),
    "ddp without synchronization has no collective": (REPLICATED, "ddp_without_synchronization_has_no_collective"),
    "ddp reduces in a group of its own": (REPLICATED, "ddp_reduces_in_a_group_of_its_own"),
    "ddp with activation checkpoints": (REPLICATED, "ddp_with_activation_checkpoints"),
    "ddp with regions of Inductor": (REPLICATED, "ddp_with_inductor"),
    "ddp with a model of transformers": (REPLICATED, "ddp_with_llama"),
    "errors of a program are its own with ddp": (SAVED, "errors_are_the_programs_own", "ddp"),
    "errors of a program are its own with fsdp": (SAVED, "errors_are_the_programs_own", "fsdp"),
    "ddp in a whole step averages in eager": (REPLICATED, "ddp_in_a_whole_step_averages_in_eager"),
    "ddp refuses writes to parameters": (REPLICATED, "ddp_refuses_writes_to_parameters"),
    "fsdp equals PyTorch with SGD in float64": (SHARDED, "equals_pytorch", "float64", "sgd", True),
    "fsdp equals PyTorch with AdamW in float64": (SHARDED, "equals_pytorch", "float64", "adamw", False),
    "fsdp equals PyTorch with AdamW in bfloat16": (SHARDED, "equals_pytorch", "bfloat16", "adamw", True),
    "fsdp begins on the meta device": (SHARDED, "begins_on_the_meta_device"),
    "fsdp reduces in another dtype": (SHARDED, "reduces_in_another_dtype"),
    "fsdp clips and accumulates gradients": (SHARDED, "clips_and_accumulates"),
    "fsdp accumulates without communication in float64": (ACCUMULATED, "equals_pytorch", "float64", "sgd"),
    "fsdp accumulates without communication in bfloat16": (ACCUMULATED, "equals_pytorch", "bfloat16", "adamw"),
    "fsdp accumulates in a wider dtype": (
        ACCUMULATED,
        "equals_pytorch_in_a_reduce_dtype",
        "bfloat16",
        "float32",
    ),
    "fsdp accumulates in a narrower dtype": (
        ACCUMULATED,
        "equals_pytorch_in_a_reduce_dtype",
        "float32",
        "bfloat16",
    ),
    "fsdp accumulates with regions of Inductor": (ACCUMULATED, "equals_pytorch_with_inductor"),
    "fsdp has no_sync": (ACCUMULATED, "no_sync_equals_pytorch"),
    "fsdp sets the synchronization of single layers": (ACCUMULATED, "layers_are_set_alone"),
    "fsdp reads the synchronization at the backward": (ACCUMULATED, "the_setting_at_the_backward_counts"),
    "fsdp reduces unreduced gradients of unused parameters": (
        ACCUMULATED,
        "parameters_that_the_last_backward_does_not_use_are_reduced",
    ),
    "fsdp keeps unreduced gradients in a partial backward": (
        ACCUMULATED,
        "a_partial_backward_keeps_unreduced_gradients",
    ),
    "fsdp holds no gradients of frozen parameters": (ACCUMULATED, "frozen_parameters_hold_nothing"),
    "fsdp communicates at the last backward": (ACCUMULATED, "communicates_only_at_the_last_backward"),
    "ddp leaves out a step that overflows": (SCALED, "overflow_leaves_the_step_out", "ddp"),
    "fsdp leaves out a step that overflows": (SCALED, "overflow_leaves_the_step_out", "fsdp"),
    "fsdp with activation checkpoints": (SHARDED, "equals_pytorch_with_activation_checkpoints"),
    "fsdp with a model of transformers": (SHARDED, "equals_pytorch_with_llama"),
    "fsdp with regions of Inductor": (SHARDED, "equals_pytorch_with_inductor"),
    "fsdp gathers again only if parameters are resharded": (SHARDED, "gathers_again_only_if_resharded"),
    "gloo makes one collective a bucket with ddp": (SHARDED, "backend_makes_the_collectives_of_the_trace", "ddp"),
    "gloo makes one collective a bucket with fsdp": (
        SHARDED,
        "backend_makes_the_collectives_of_the_trace",
        "fsdp",
    ),
    "fsdp gathers ahead and waits for reductions late": (
        SHARDED,
        "gathers_run_ahead_and_reductions_are_waited_for_late",
    ),
    "fsdp has the state of PyTorch": (SHARDED, "state_is_that_of_pytorch"),
    "fsdp refuses what it cannot shard": (SHARDED, "refusals"),
    "fsdp allows conversions that change nothing": (SHARDED, "conversions_that_change_nothing"),
    "tensor-parallel equals PyTorch with SGD in float64": (PARALLEL, "equals_pytorch", "float64", "sgd"),
    "tensor-parallel equals PyTorch with SGD in bfloat16": (PARALLEL, "equals_pytorch", "bfloat16", "sgd"),
    "tensor-parallel takes PyTorch's styles": (PARALLEL, "plan_of_pytorchs_styles"),
    "tensor-parallel communicates once for layers with one input": (
        PARALLEL,
        "communicates_once_for_layers_with_one_input",
    ),
    "tensor-parallel with a Llama equals PyTorch": (PARALLEL, "llama_equals_pytorch"),
    "tensor-parallel gives norms of heads whole gradients": (PARALLEL, "norms_of_heads_get_whole_gradients"),
    "tensor-parallel generates": (PARALLEL, "generates"),
    **{
        f"tensor-parallel generates with {scheme}": (PARALLEL, "generates_with_quantized_layers", scheme)
        for scheme in ("int8-weight-only", "int8-dynamic", "int4-weight-only", "fp8", "bf16")
    },
    "tensor-parallel refuses quantized layers": (PARALLEL, "refuses_quantized_layers_that_ranks_cannot_divide"),
    "tensor-parallel saves and loads": (PARALLEL, "saves_and_loads"),
    "tensor-parallel refuses bad plans": (PARALLEL, "refusals"),
    "an artifact of ddp loads on every rank": (SAVED, "loads_on_every_rank", "ddp"),
    "an artifact of fsdp loads on every rank": (SAVED, "loads_on_every_rank", "fsdp"),
    "parameters of a loaded fsdp module are frozen and thawed": (
        SAVED,
        "sharded_parameters_are_frozen_after_loading",
    ),
    "the command optimizes with ddp": (COMMANDS, "optimizes", "ddp", "DDP"),
    "the command optimizes with fsdp": (COMMANDS, "optimizes", "fsdp", "FSDP2"),
    "the command optimizes with tensor-parallel": (
        COMMANDS,
        "optimizes",
        "tensor-parallel",
        "parallelize_module",
    ),
    "the command generates with tensor-parallel": (COMMANDS, "generates", "hf-llama3"),
    "the command generates with a static cache": (COMMANDS, "generates", "hf-generate"),
    "the command runs one forward": (MORE_COMMANDS, "runs_one_forward"),
    "the command generates with tensor-parallel and int8-dynamic": (
        MORE_COMMANDS,
        "optimizes_quantized",
        "generate",
        "tensor-parallel",
        "int8-dynamic",
    ),
    "the command optimizes with int8-weight-only and tensor-parallel": (
        MORE_COMMANDS,
        "optimizes_quantized",
        "call",
        "int8-weight-only",
        "tensor-parallel",
    ),
    "the command optimizes with bf16": (MORE_COMMANDS, "optimizes_quantized", "call", "tensor-parallel", "bf16"),
    "the command leaves the same layers in floating point on all ranks": (
        MORE_COMMANDS,
        "optimizes_quantized",
        "call",
        "int4-weight-only",
        "tensor-parallel",
        "--skip-layers",
        "auto",
        "--set",
        "error=0.06",
    ),
    "the command trains adapters with ddp": (MORE_COMMANDS, "trains_adapters", "ddp"),
    "the command trains adapters with fsdp": (MORE_COMMANDS, "trains_adapters", "fsdp"),
    "the command plans on the first rank": (COMMANDS, "plans_on_the_first_rank"),
    "the command refuses what ranks cannot do": (COMMANDS, "refuses_what_ranks_cannot_do"),
    "the command finds gradients that were not reduced": (COMMANDS, "finds_gradients_that_were_not_reduced"),
    "an artifact of ddp refuses another group": (SAVED, "another_group_is_refused", "ddp"),
    "an artifact of fsdp refuses another group": (SAVED, "another_group_is_refused", "fsdp"),
}


@pytest.mark.parametrize("case", CASES)
def test_training(ranks: Ranks, case: str) -> None:
    ranks.run(*CASES[case])


@pytest.mark.parametrize("recipe", ["ddp", "fsdp", "tensor-parallel"])
def test_recipe_is_refused_outside_a_process_group(recipe: str) -> None:
    with pytest.raises(OutsideProcessGroup, match=f"{recipe} .* no process group") as caught:
        thunder.compile(torch.nn.Linear(2, 2), recipe)
    assert "torchrun" in caught.value.fix


def test_artifact_is_refused_outside_a_process_group(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        compiled = thunder.compile(torch.nn.Linear(2, 2), "ddp", without=["inductor"])
        compiled(torch.ones(1, 2)).sum().backward()
        folder = thunder.save(compiled, tmp_path / "artifact")
    finally:
        dist.destroy_process_group()
    with pytest.raises(OutsideProcessGroup, match="no process group"):
        thunder.load(folder, torch.nn.Linear(2, 2))
