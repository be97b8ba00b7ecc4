"""Look up the process group of parallel training by name, and build its mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_core.foundation.errors import OutsideProcessGroup, RecipeMismatch
from thunder_core.tracing.library.collectives import registered_group

FROM_MESH = "mesh_"  # the prefix of the description of a process group that PyTorch creates for an axis of a mesh


def required_group(name: str, recipe: str) -> Any:
    """Return the process group with a name, or the default group; raise `OutsideProcessGroup` if there is none."""
    ready = dist.is_available() and dist.is_initialized()
    group = (registered_group(name) if name else dist.group.WORLD) if ready else None
    if group is None:
        lacking = f"has no process group {name!r}" if ready else "has no process group"
        raise OutsideProcessGroup(
            f"the recipe {recipe} trains on several processes, but this process {lacking}",
            fix="start a script with `torchrun --nproc-per-node 2 script.py`, and call in it "
            f"`torch.distributed.init_process_group` and then `thunder_core.compile(model, {recipe!r})`; or run "
            f"`torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe {recipe} --train`",
        )
    return group


def mesh_of(axes: Sequence[tuple[str, Any]], device: torch.device) -> DeviceMesh:
    """Return the mesh with process groups as axes, the outermost first, each with a name for groups without a mesh.

    Raises `RecipeMismatch` if the groups are not the axes of a mesh.
    """
    groups = [group for _, group in axes]
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device.type)
    ranks: Any = dist.get_process_group_ranks(groups[-1])
    for group in reversed(groups[:-1]):
        rows: list[Any] = [None] * group.size()
        dist.all_gather_object(rows, ranks, group)
        ranks = rows
    require_axes(ranks, groups)
    names = tuple(axis_name(group, name) for name, group in axes)
    return DeviceMesh.from_group(groups, device.type, mesh=torch.tensor(ranks), mesh_dim_names=names)


def require_axes(ranks: Any, groups: Sequence[Any]) -> None:
    """Raise `RecipeMismatch` if the groups are not the axes of a mesh with these ranks."""
    array = np.array(ranks, dtype=object)
    place = tuple(group.rank() for group in groups)
    own = [dist.get_process_group_ranks(group) for group in groups]
    is_mesh = array.shape == tuple(map(len, own)) and len(set(array.flat)) == array.size
    if not is_mesh or any(
        [*array[(*place[:axis], slice(None), *place[axis + 1 :])]] != line for axis, line in enumerate(own)
    ):
        raise RecipeMismatch(
            f"the process groups of the recipes (ranks {' and '.join(map(str, own))}) are not the axes of a mesh",
            fix='make them from one mesh: init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))',
        )


def axis_name(group: Any, name: str) -> str:
    """Return the name of a group's axis in the mesh that the group comes from, or the given name."""
    description = str(group.group_desc)
    return description.removeprefix(FROM_MESH) if description.startswith(FROM_MESH) else name
