"""The process group of an artifact whose programs communicate: its facts, and the check of the group when loading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.groups import required_group
from thunder_core.backend.parallel.local_parts import LEAVES
from thunder_core.backend.parallel.replicas import SYNCHRONIZES
from thunder_core.foundation.errors import ArtifactForeign, CannotReplay
from thunder_core.passes.recipe import Transform
from thunder_core.workflow.artifact.format.manifest import GroupFacts, Manifest


def group_facts(transforms: Iterable[Transform], *, include_weights: bool) -> GroupFacts | None:
    """Return the process group of parallel training, or None for programs of one process.

    Raises `CannotReplay` if weights should be included, because a rank may have only a part of them, and for a group
    without all ranks, because the other ranks communicate in other groups.
    """
    parallel: list[Any] = [transform for transform in transforms if transform.is_parallel]
    if not parallel:
        return None
    first = parallel[0]
    if include_weights:
        raise CannotReplay(
            f"an artifact of the recipe {first.name} cannot include weights, which belong to the ranks",
            fix="leave out --include-weights, and save the state dict with `torch.distributed.checkpoint`",
        )
    groups = [required_group(transform.process_group, transform.name) for transform in parallel]
    group = next((group for group in groups if group.size() != dist.get_world_size()), groups[0])
    if group.size() != dist.get_world_size():
        raise CannotReplay(
            f"a program that communicates in a process group of {group.size()} of {dist.get_world_size()} ranks cannot "
            "be saved, because the groups of other ranks have other names",
            fix="save the state dict with `torch.distributed.checkpoint`, and compile the model on each rank",
        )
    return GroupFacts(recipe=first.name, asked=first.process_group, name=group.group_name, size=group.size())


def require_group(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` if the process group of an artifact's programs differs from the group of this process.

    Raises `OutsideProcessGroup` if this process has no group.
    """
    facts = manifest.group
    if facts is None:
        return
    group = required_group(facts.asked, facts.recipe)
    if group.size() != facts.size:
        raise ArtifactForeign(
            f"the artifact was made by the recipe {facts.recipe} for {facts.size} ranks, but the process group here "
            f"has {group.size()}",
            fix=f"start {facts.size} processes (`torchrun --nproc-per-node {facts.size}`), or make the artifact again",
        )
    if group.group_name != facts.name:
        raise ArtifactForeign(
            f"the programs of the artifact communicate in the process group {facts.name!r}, but the group here is "
            f"{group.group_name!r}",
            fix="make process groups in the same order as when the artifact was made, or make the artifact again",
        )


def is_parallel(model: torch.nn.Module) -> bool:
    """Whether a recipe for parallel training has prepared the model."""
    return SYNCHRONIZES in model.__dict__ or any(LEAVES in module.__dict__ for module in model.modules())
