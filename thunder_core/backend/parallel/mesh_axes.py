"""Names of the axes of a mesh, which are the same on all ranks, for the process groups that programs communicate in.

The groups of an axis have different names on different ranks. A program that names such a group would be valid on one
rank only. Therefore, this module registers the group of this rank a second time, by the name of the axis with its
layout: `shard_2x1` is the axis `shard` with two ranks, at distance 1.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_core.tracing.library.collectives import registered_group

FROM_MESH = "mesh_"  # the prefix of the description of a process group that PyTorch creates for an axis of a mesh
_program_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class AxisLayout(NamedTuple):
    """The layout of an axis: its number of ranks, the distance between neighbouring ranks, and the number of all ranks.

    In a mesh of all ranks, these numbers determine the groups of all ranks along the axis.
    """

    size: int
    stride: int
    world: int


def axis_of(group: Any) -> str:
    """Return the name of a process group's axis in the mesh that the group comes from, or an empty string."""
    description = str(group.group_desc)
    return description.removeprefix(FROM_MESH) if description.startswith(FROM_MESH) else ""


def layout_of(group: Any) -> AxisLayout | None:
    """Return the layout of the mesh axis of a process group; None for a group that is not an axis of a mesh."""
    ranks = dist.get_process_group_ranks(group)
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    start = ranks[0] % (stride * len(ranks)) if stride > 0 else -1
    is_regular = 0 <= start < stride and ranks == [*range(ranks[0], ranks[-1] + 1, max(stride, 1))]
    return AxisLayout(len(ranks), stride, dist.get_world_size()) if axis_of(group) and is_regular else None


def is_alive(group: object) -> bool:
    """Whether a process group of this process has not been destroyed."""
    return group in dist.distributed_c10d._world.pg_names


def groups_of_axis(name: str) -> list[Any]:
    """Return the process groups of this rank along the axes with a name, of all meshes."""
    groups: list[Any] = list(dist.distributed_c10d._world.pg_names)
    return [group for group in groups if isinstance(group, dist.ProcessGroup) and axis_of(group) == name]


def groups_of_meshes(name: str) -> list[Any]:
    """Return the process groups of named axes for which PyTorch created no group, but used an existing group.

    PyTorch uses the default group for the only axis of a mesh of all ranks. PyTorch keeps no list of meshes, so this
    function searches all objects of the process.
    """
    meshes = [item for item in gc.get_objects() if type(item) is DeviceMesh and name in (item.mesh_dim_names or ())]
    groups = [mesh.get_group(name) for mesh in meshes if mesh.get_coordinate() is not None]
    return [group for group in groups if is_alive(group)]


def group_name_in_programs(group: Any) -> str:
    """Return the name of a process group in programs: its axis in a mesh with the layout of the axis, or its own name.

    The name does not depend on other meshes with an axis of this name, unless an axis has the same layout. Groups of
    such axes are numbered in the order in which PyTorch has created them, which is the same on all ranks.
    """
    if not is_named(group):
        layout = layout_of(group)
        if layout is None:
            return str(group.group_name)
        for twin in groups_of_axis(axis_of(group)):
            if layout_of(twin) == layout and not is_named(twin):
                next(name for name in axis_names(axis_of(group), layout) if register(twin, name))
    return _program_names[group]


def is_named(group: object) -> bool:
    """Whether a process group is registered by a name of its axis."""
    return group in _program_names and registered_group(_program_names[group]) is group


def axis_names(axis: str, layout: AxisLayout) -> Iterator[str]:
    """Yield names for an axis that are not numbers, because PyTorch names groups by numbers."""
    stem = f"{axis if axis.isidentifier() else f'axis_{axis}'}_{layout.size}x{layout.stride}"
    yield stem
    yield from (f"{stem}_{number}" for number in itertools.count(2))


def register(group: object, name: str) -> bool:
    """Register a process group by a name; return False if another group has this name."""
    registered = registered_group(name)
    if registered is not group:
        if registered is not None and is_alive(registered):
            return False
        c10d: Any = torch._C._distributed_c10d
        c10d._unregister_process_group(name)
        c10d._register_process_group(name, group)
    _program_names[group] = name
    return True
