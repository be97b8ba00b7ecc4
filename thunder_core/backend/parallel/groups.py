"""Look up the process group of parallel training by name, and build its mesh."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_core.foundation.errors import OutsideProcessGroup, RecipeMismatch
from thunder_core.tracing.library.collectives import group_of, registered_group


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


def mesh_of(shard_group: Any, replicate_group_name: str | None, device: torch.device) -> DeviceMesh:
    """Return the mesh of a process group; with a group of replicas, the first axis of the mesh is the replicas.

    Raises `RecipeMismatch` if the two groups are not the axes of a mesh.
    """
    if replicate_group_name is None:
        return DeviceMesh.from_group(shard_group, device.type)
    replicate_group = group_of(replicate_group_name)
    own = dist.get_process_group_ranks(shard_group)
    rows: list[Any] = [None] * replicate_group.size()
    dist.all_gather_object(rows, own, replicate_group)
    column = [row[shard_group.rank()] for row in rows]
    ranks = [rank for row in rows for rank in row]
    if len(set(ranks)) != len(ranks) or column != dist.get_process_group_ranks(replicate_group):
        raise RecipeMismatch(
            f"the process groups of fsdp (ranks {own}) and ddp (ranks "
            f"{dist.get_process_group_ranks(replicate_group)}) are not the axes of a mesh",
            fix='make both from one mesh: init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))',
        )
    groups, names = [replicate_group, shard_group], ("replicate", "shard")
    return DeviceMesh.from_group(groups, device.type, mesh=torch.tensor(rows), mesh_dim_names=names)
