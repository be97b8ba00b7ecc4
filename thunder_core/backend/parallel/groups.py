"""Look up the process group of parallel training by name, and build its mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_core.backend.parallel.mesh_axes import axis_of, group_name_in_programs, groups_of_axis, groups_of_meshes
from thunder_core.foundation.errors import OutsideProcessGroup, RecipeMismatch
from thunder_core.tracing.library.collectives import registered_group


def required_group(name: str, recipe: str) -> Any:
    """Return the process group that a recipe names: by its own name, or by the mesh axis that it belongs to.

    An empty name means the default group. Raises `OutsideProcessGroup` if this process has no such group.
    """
    ready = dist.is_available() and dist.is_initialized()
    group = (named_group(name) if name else dist.group.WORLD) if ready else None
    if group is None and ready:
        raise OutsideProcessGroup(
            f"the recipe {recipe} trains on several processes, but this process has no process group {name!r}",
            fix='pass a process group, or a mesh with one axis, instead of its name: process_group=mesh["shard"]',
        )
    if group is None:
        raise OutsideProcessGroup(
            f"the recipe {recipe} trains on several processes, but this process has no process group",
            fix="start a script with `torchrun --nproc-per-node 2 script.py`, and call in it "
            f"`torch.distributed.init_process_group` and then `thunder_core.compile(model, {recipe!r})`; or run "
            f"`torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe {recipe} --train`",
        )
    return group


def with_program_names(transforms: Iterable[Any]) -> tuple[Any, ...]:
    """Return the transforms with the names of process groups that programs use, which are the same on all ranks."""
    return tuple(
        replace(
            transform, process_group=group_name_in_programs(required_group(transform.process_group, transform.name))
        )
        if transform.is_parallel and transform.process_group
        else transform
        for transform in transforms
    )


def named_group(name: str) -> Any:
    """Return the process group with a name, or the group of the mesh axis with this name; None if there is none.

    Raises `RecipeMismatch` if meshes have different axes with this name.
    """
    group = registered_group(name)
    if group is not None:
        return group
    groups = groups_of_axis(name) or groups_of_meshes(name)
    if len({tuple(dist.get_process_group_ranks(group)) for group in groups}) > 1:
        raise RecipeMismatch(
            f"several meshes of this process have an axis {name!r}, with different ranks",
            fix=f"name the process group: mesh.get_group({name!r}).group_name",
        )
    return groups[0] if groups else None


def mesh_of(axes: Sequence[tuple[str, Any]], device: torch.device) -> DeviceMesh:
    """Return a mesh whose axes are process groups, the outermost first. A group without a mesh gets the paired name.

    Raises `RecipeMismatch` if the groups are not the axes of a mesh.
    """
    groups = [group for _, group in axes]
    kind = device_type_of(groups[-1]) if device.type == "meta" else device.type
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], kind)
    ranks: Any = dist.get_process_group_ranks(groups[-1])
    for group in reversed(groups[:-1]):
        rows: list[Any] = [None] * group.size()
        dist.all_gather_object(rows, ranks, group)
        ranks = rows
    require_axes(ranks, groups)
    names = tuple(axis_name(group, name) for name, group in axes)
    return DeviceMesh.from_group(groups, kind, mesh=torch.tensor(ranks), mesh_dim_names=names)


def device_type_of(group: Any) -> str:
    """Return the type of the accelerator if the process has one and the group communicates its tensors; else `cpu`."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    types = {device.type for device in group._device_types}
    return accelerator.type if accelerator is not None and accelerator.type in types else "cpu"


def require_axes(ranks: object, groups: Sequence[Any]) -> None:
    """Raise `RecipeMismatch` if the groups are not the axes of a mesh with these ranks."""
    array = np.array(ranks, dtype=object)
    coordinate = tuple(group.rank() for group in groups)
    own = [dist.get_process_group_ranks(group) for group in groups]
    is_mesh = array.shape == tuple(map(len, own)) and len(set(array.flat)) == array.size
    if not is_mesh or any(
        [*array[(*coordinate[:axis], slice(None), *coordinate[axis + 1 :])]] != line for axis, line in enumerate(own)
    ):
        raise RecipeMismatch(
            f"the process groups of the recipes (ranks {' and '.join(map(str, own))}) are not the axes of a mesh",
            fix='make them from one mesh: init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))',
        )


def axis_name(group: object, name: str) -> str:
    """Return the name of a group's axis in the mesh that the group comes from, or the given name."""
    return axis_of(group) or name
