"""The process groups that an artifact's programs communicate in.

Saving an artifact stores the facts about the groups, and loading compares them with the groups of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.groups import required_group
from thunder_core.backend.parallel.local_parts import DIVIDED_OVER, LEAVES
from thunder_core.backend.parallel.mesh_axes import (
    AxisLayout,
    axis_of,
    group_name_in_programs,
    groups_of_axis,
    layout_of,
    register,
)
from thunder_core.backend.parallel.replicas import SYNCHRONIZES
from thunder_core.foundation.errors import ArtifactForeign, CannotReplay
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.library.collectives import registered_group
from thunder_core.workflow.artifact.format.manifest import GroupFacts, Manifest


def group_facts(transforms: Iterable[Transform], *, include_weights: bool) -> tuple[GroupFacts, ...]:
    """Return the facts about the process groups of parallel training, one group for each parallel transform.

    Raises `CannotReplay` if weights should be included, because a rank may have only a part of them. Also raises
    `CannotReplay` for a group of some of the ranks, unless the group belongs to an axis of a mesh: the names of other
    groups differ between ranks.
    """
    parallel: list[Any] = [transform for transform in transforms if transform.is_parallel]
    if parallel and include_weights:
        raise CannotReplay(
            f"an artifact of the recipe {parallel[0].name} cannot include weights, which belong to the ranks",
            fix="leave out --include-weights, and save the state dict with `torch.distributed.checkpoint`",
        )
    return tuple(facts_of_group(transform.name, transform.process_group) for transform in parallel)


def facts_of_group(recipe: str, process_group: str) -> GroupFacts:
    """Return the facts about the process group of a recipe; raise `CannotReplay` for a group that cannot be saved."""
    group = required_group(process_group, recipe)
    facts = GroupFacts(
        recipe=recipe, process_group=process_group, name=group_name_in_programs(group), size=group.size()
    )
    if group.size() == dist.get_world_size():
        return facts
    layout = layout_of(group)
    if layout is None or process_group != facts.name:
        raise CannotReplay(
            f"a program that communicates in a process group of {group.size()} of {dist.get_world_size()} ranks cannot "
            "be saved, because the groups of other ranks have other names",
            fix="make the groups with `init_device_mesh` and names of its axes, and pass these names to "
            f"thunder_core.compile: {{'{recipe.replace('_', '-')}.process_group': 'NAME'}}",
        )
    return facts.model_copy(update={"axis": axis_of(group), "stride": layout.stride, "world_size": layout.world})


def require_groups(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` if process groups of an artifact's programs differ from the groups of this process.

    Raises `OutsideProcessGroup` if this process has no group.
    """
    groups = () if manifest.group is None else (manifest.group, *manifest.more_groups)
    for facts in groups:
        if facts.axis:
            require_axis(facts, groups)
        else:
            require_group(facts)


def require_group(facts: GroupFacts) -> None:
    """Raise `ArtifactForeign` if the process group of all ranks differs from the process group of an artifact."""
    group = required_group(facts.process_group, facts.recipe)
    if group.size() != facts.size:
        raise ArtifactForeign(
            f"the artifact was made by the recipe {facts.recipe} for {facts.size} ranks, but the process group here "
            f"has {group.size()}",
            fix=f"start {facts.size} processes (`torchrun --nproc-per-node {facts.size}`), or make the artifact again",
        )
    if group_name_in_programs(group) != facts.name:
        raise ArtifactForeign(
            f"the programs of the artifact communicate in the process group {facts.name!r}, but the group here is "
            f"{group_name_in_programs(group)!r}",
            fix="make process groups in the same order as when the artifact was made, or make the artifact again",
        )


def require_axis(facts: GroupFacts, mesh: Sequence[GroupFacts]) -> None:
    """Raise `ArtifactForeign` if this process has no mesh with the axis of an artifact.

    Register the group of this process along the axis under the name that the artifact's programs use.
    """
    required_group("", facts.recipe)
    world_size, ranks_here = facts.world_size, dist.get_world_size()
    if ranks_here != world_size:
        raise ArtifactForeign(
            f"the artifact was made for the mesh {in_words(mesh)} of {world_size} ranks, "
            f"but there are {ranks_here} here",
            fix=f"start {world_size} processes (`torchrun --nproc-per-node {world_size}`), or make the artifact again",
        )
    groups = groups_of_axis(facts.axis)
    layout = AxisLayout(facts.size, facts.stride, world_size)
    group = next((group for group in groups if layout_of(group) == layout), None)
    if group is None:
        here = ", ".join(f"{group.size()} ranks {dist.get_process_group_ranks(group)}" for group in groups)
        raise ArtifactForeign(
            f"the artifact was made for the mesh {in_words(mesh)}, but "
            + (f"the axis {facts.axis!r} here has {here}" if here else f"no mesh here has the axis {facts.axis!r}"),
            fix=f"call {initialization_of(mesh)} before you load the artifact, or make the artifact again",
        )
    if not register(group, facts.name) and not has_same_ranks(group, registered_group(facts.name)):
        raise ArtifactForeign(
            f"the programs of the artifact communicate in the process group {facts.name!r}, but this name is already "
            "the name of a group with other ranks",
            fix="load the artifact before you make other meshes with the same names, or make the artifact again",
        )


def has_same_ranks(group: Any, other: Any) -> bool:
    """Whether two process groups have the same ranks and the same backend, so that they are interchangeable."""
    are_same = dist.get_process_group_ranks(group) == dist.get_process_group_ranks(other)
    return bool(are_same and dist.get_backend(group) == dist.get_backend(other))


def outermost_first(mesh: Sequence[GroupFacts]) -> list[GroupFacts]:
    """Return the axes of a mesh in the order of `init_device_mesh`: the axis with the largest stride comes first."""
    return sorted(mesh, key=lambda facts: -facts.stride)


def in_words(mesh: Sequence[GroupFacts]) -> str:
    """Return the axes of a mesh with their sizes, such as `replicate=2,shard=4`."""
    return ",".join(f"{facts.axis}={facts.size}" for facts in outermost_first(mesh))


def initialization_of(mesh: Sequence[GroupFacts]) -> str:
    """Return the call of `init_device_mesh` that makes a mesh, as Python code."""
    axes = outermost_first(mesh)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, names = tuple(facts.size for facts in axes), tuple(facts.axis for facts in axes)
    return f'init_device_mesh("{device}", {shape}, mesh_dim_names={names})'


def is_parallel(model: torch.nn.Module) -> bool:
    """Whether a recipe for parallel training has prepared the model."""
    is_marked = SYNCHRONIZES in model.__dict__ or DIVIDED_OVER in model.__dict__
    return is_marked or any(LEAVES in module.__dict__ for module in model.modules())
