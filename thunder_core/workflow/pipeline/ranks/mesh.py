"""The mesh of the ranks of a command, with an axis for each parallel transform."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from thunder_core.backend.parallel.groups import with_program_names
from thunder_core.passes.recipe import Transform
from thunder_core.workflow.pipeline.session.prepare import PreparedModel

SINGLE_AXIS = "ranks"  # the name of the axis of a mesh of one axis


@dataclass(frozen=True)
class RanksMesh:
    """A mesh of all ranks, and the parallel transforms in the order of their axes."""

    mesh: DeviceMesh
    transforms: tuple[Transform, ...]
    device: torch.device

    def along(self, *kinds: type) -> DeviceMesh:
        """Return the submesh of the axes that transforms of these kinds use."""
        names: Any = self.mesh.mesh_dim_names
        axes = tuple(
            name for name, transform in zip(names, self.transforms, strict=True) if isinstance(transform, kinds)
        )
        return self.mesh[axes]


def mesh_of_ranks(prepared: PreparedModel, device: torch.device) -> tuple[PreparedModel, RanksMesh]:
    """Create the mesh of all ranks; return it, and the preparation with the names of its axes in the transforms."""
    shapes = prepared.mesh if len(prepared.parallel) > 1 else {SINGLE_AXIS: dist.get_world_size()}
    mesh = init_device_mesh(device.type, tuple(shapes.values()), mesh_dim_names=tuple(shapes))
    if len(prepared.parallel) > 1:
        pairs: Any = zip(prepared.parallel, shapes, strict=True)
        named = {transform: replace(transform, process_group=axis) for transform, axis in pairs}
        in_order = with_program_names(named.get(transform, transform) for transform in prepared.in_order)
        prepared = replace(prepared, in_order=in_order)
    return prepared, RanksMesh(mesh, prepared.parallel, device)
