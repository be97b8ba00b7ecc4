"""Options of recipes take PyTorch's process groups, meshes and dtypes, and name an unknown group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import thunder_core as thunder
from thunder_core.foundation.errors import BadOption, OutsideProcessGroup

pytestmark = pytest.mark.usefixtures("group_of_one")
RECIPES = ("ddp", "fsdp")


def gradient_of(recipe: str, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model: Any = thunder.compile(nn.Linear(2, 3), recipe, without=["inductor"], **options)
    model(torch.ones(1, 2)).sum().backward()
    gradient: Any = model.weight.grad
    result: torch.Tensor = gradient.full_tensor() if recipe == "fsdp" else gradient
    return result


@pytest.mark.parametrize("recipe", RECIPES)
def test_group_and_mesh_are_options(recipe: str) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    for group in (
        dist.group.WORLD,
        dist.new_group([0]),
        init_device_mesh("cpu", (1,)),
        mesh["dp"],
        mesh.get_group("dp"),
    ):
        assert torch.equal(gradient_of(recipe, process_group=group), torch.ones(3, 2))


def test_dtype_is_an_option() -> None:
    assert torch.equal(gradient_of("fsdp", reduce_dtype=torch.bfloat16), torch.ones(3, 2))
    with pytest.raises(BadOption, match="int8"):
        gradient_of("fsdp", reduce_dtype=torch.int8)


@pytest.mark.parametrize("recipe", RECIPES)
def test_axis_of_a_mesh_of_all_ranks_is_the_default_group(recipe: str) -> None:
    """PyTorch creates no group for such an axis, so no description of a group has the name of the axis."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("all_ranks",))
    assert mesh.get_group() is dist.group.WORLD
    assert torch.equal(gradient_of(recipe, process_group="all_ranks"), torch.ones(3, 2))


@pytest.mark.parametrize("recipe", RECIPES)
def test_unknown_groups_are_refused(recipe: str) -> None:
    with pytest.raises(OutsideProcessGroup, match="no process group 'dp'") as refusal:
        gradient_of(recipe, process_group="dp")
    assert "torchrun" not in str(refusal.value)
    with pytest.raises(BadOption, match="process_group"):
        gradient_of(recipe, process_group=init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp")))
