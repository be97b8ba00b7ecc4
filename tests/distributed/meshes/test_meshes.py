"""Training on four ranks: on a mesh of two axes, the sum of two recipes equals PyTorch's functions on the mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import thunder_core as thunder
from tests.distributed.models import Layers, tokens
from tests.distributed.ranks import Ranks
from tests.distributed.recipes.training import EAGER
from thunder_core.backend.parallel.mesh_axes import group_name_in_programs

MODULE = "tests.distributed.meshes.meshes"
CASES: dict[str, tuple[Any, ...]] = {
    "hybrid equals PyTorch with SGD in float64": ("hybrid_equals_pytorch", "float64", "sgd", True),
    "hybrid equals PyTorch with AdamW in bfloat16": ("hybrid_equals_pytorch", "bfloat16", "adamw", False),
    "hybrid clips and accumulates gradients": ("hybrid_clips_and_accumulates",),
    "hybrid reduces shards over replicas": ("hybrid_reduces_shards_over_replicas",),
    "hybrid has the state of PyTorch": ("hybrid_state_is_that_of_pytorch",),
    "groups without a mesh cannot be saved": ("groups_without_a_mesh_cannot_be_saved",),
    "artifact of shards and replicas loads on every rank": ("artifact_of_mesh_loads_on_every_rank", "hybrid"),
    "artifact of shards and tensor parallelism loads on every rank": ("artifact_of_mesh_loads_on_every_rank", "both"),
    "artifact of another mesh is refused": ("artifact_of_another_mesh_is_refused",),
    "axes are named as process groups": ("axes_are_named_as_process_groups",),
    "another mesh with the same names is another group": ("another_mesh_with_the_same_names_is_another_group",),
    "names of axes do not depend on the order of use": ("names_do_not_depend_on_the_order_of_use",),
    "fsdp on four ranks equals PyTorch": ("four_shards_equal_pytorch",),
    "hybrid accumulates gradients without communication": ("hybrid_accumulates_without_communication",),
    "hybrid refuses groups that are no mesh": ("hybrid_refusals",),
    "fsdp and tensor-parallel equal PyTorch with SGD in float64": ("both_equal_pytorch", "float64", "sgd", True),
    "fsdp and tensor-parallel equal PyTorch with SGD in bfloat16": ("both_equal_pytorch", "bfloat16", "sgd", False),
    "fsdp and tensor-parallel give one program in either order": ("both_give_one_program_in_either_order",),
    "fsdp and tensor-parallel accumulate gradients without communication": ("both_accumulate_without_communication",),
    "fsdp and tensor-parallel have the state of PyTorch": ("both_have_the_state_of_pytorch",),
    "ddp and tensor-parallel equal one process with SGD": ("replicated_parts_equal_one_process", "sgd"),
    "ddp and tensor-parallel equal PyTorch": ("replicated_parts_equal_pytorch",),
    "ddp, fsdp and tensor-parallel equal one process": ("all_three_equal_one_process",),
    "hybrid reduces in float32": ("hybrid_reduces_in_another_dtype", "float32"),
    "fsdp and tensor-parallel with a model of transformers": ("both_with_a_transformer",),
}


def test_messages_do_not_shift_the_programs_that_ranks_compare(four_ranks: Ranks) -> None:
    four_ranks.run("tests.distributed.agreement.agreement", "patiently", "messages_do_not_shift_programs")


@pytest.mark.parametrize("recipes", ["fsdp ddp", "fsdp tensor-parallel", "ddp tensor-parallel"])
def test_command_optimizes_on_a_mesh(four_ranks: Ranks, recipes: str) -> None:
    four_ranks.run("tests.distributed.commands.commands", "optimizes_on_a_mesh", recipes)


def program_on_meshes(*names: str) -> str:
    """The program of the first of four ranks on a mesh, and the names of all groups; meshes are made in this order."""
    shapes = {"first": ("axis", "inner"), "second": ("outer", "axis"), "third": ("axis", "inner")}
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        meshes = {
            name: init_device_mesh("cpu", (2, 2) if name != "third" else (1, 4), mesh_dim_names=shapes[name])
            for name in names
        }
        groups = [group_name_in_programs(meshes[name].get_group("axis")) for name in names]
        compiled = thunder.compile(Layers(), "fsdp", without=EAGER, process_group=groups[names.index("second")])
        compiled(tokens(0, 0)).sum().backward()
        traces = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
        return "\n".join([*sorted(groups), *map(str, traces)])
    finally:
        dist.destroy_process_group()


def test_program_does_not_depend_on_the_order_of_meshes() -> None:
    text = program_on_meshes("first", "second", "third")
    assert text.startswith("axis_1x1\naxis_2x1\naxis_2x2\n")
    assert "'axis_2x1'" in text
    assert program_on_meshes("third", "second", "first") == text


@pytest.mark.parametrize("case", CASES)
def test_on_four_ranks(four_ranks: Ranks, case: str) -> None:
    four_ranks.run(MODULE, *CASES[case])
