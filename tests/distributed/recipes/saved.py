"""Checks of artifacts of parallel training, run on each rank: an artifact of the first rank is loaded on all."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes.sharded_training import steps_of, whole
from tests.distributed.recipes.training import EAGER, loss_of
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.workflow.artifact.format.read import open_artifact


def shared_folder() -> Path:
    """A new folder of the first rank, whose path all ranks get."""
    paths = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(paths)
    return Path(paths[0]) / "artifact"


def artifact_of(compiled: Any, loss: Any, *, writer: int) -> Path:
    """An artifact that one rank writes, of a model that all ranks have called."""
    loss(compiled, 0).backward()
    folder = shared_folder()
    if dist.get_rank() == writer:
        thunder.save(compiled, folder)
    dist.barrier()
    return folder


def saved(recipe: Any) -> Path:
    """An artifact that the first rank writes."""
    return artifact_of(thunder.compile(Layers(), recipe, without=EAGER), loss_of, writer=0)


def loads_on_every_rank(recipe: str) -> None:
    folder = saved(recipe)
    loaded = thunder.load(folder, Layers(seed=dist.get_rank()), strict=True)
    compiled = thunder.compile(Layers(), recipe, without=EAGER)
    assert_equal(steps_of(loaded), steps_of(compiled))


class Refusing(Layers):
    """A model that refuses batches of 3, and cannot compute batches of 5."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        if x.shape[0] == 3:
            raise ValueError("three samples")
        return y @ y if x.shape[0] == 5 else y


def errors_are_the_programs_own(recipe: str) -> None:
    """No call runs in eager PyTorch, which could not compute with shards, or would not average gradients."""
    compiled = thunder.compile(Refusing(), recipe, without=EAGER)
    assert compiled(samples(2)).shape == (2, 11)
    for _ in range(2):
        with pytest.raises(ValueError, match="three samples"):
            compiled(samples(3))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            compiled(samples(5))
    assert compiled(samples(4)).shape == (4, 11)


def samples(size: int) -> torch.Tensor:
    """Tokens, one for each sample."""
    return torch.arange(size)


def sharded_parameters_are_frozen_after_loading() -> None:
    loaded = thunder.load(saved("fsdp"), Layers())
    loaded.layers[0].up.weight.requires_grad_(False)
    loss_of(loaded, 0).backward()
    assert loaded.layers[0].up.weight.grad is None
    loaded.layers[0].up.weight.requires_grad_(True)
    loss_of(loaded, 1).backward()
    compiled = thunder.compile(Layers(), "fsdp", without=EAGER)
    loss_of(compiled, 1).backward()
    assert_equal(whole(loaded.layers[0].up.weight.grad), whole(compiled.layers[0].up.weight.grad))


def with_group(folder: Path, **facts: Any) -> Path:
    """The artifact as if it were made in another group; the manifest keeps its own digest valid."""

    artifact = open_artifact(folder)
    group = artifact.manifest.group.model_copy(update=facts)
    manifest = artifact.manifest.model_copy(update={"group": group}).with_own_digest()
    dist.barrier()  # all ranks have read the manifest
    if dist.get_rank() == 0:
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
    dist.barrier()
    assert json.loads((folder / "manifest.json").read_text())["group"]["size"] == group.size
    return folder


def another_group_is_refused(recipe: str) -> None:
    folder = saved(recipe)
    with pytest.raises(
        ArtifactForeign, match=f"recipe {recipe} for 4 ranks, but the process group here has 2"
    ) as error:
        thunder.load(with_group(folder, size=4), Layers())
    assert "--nproc-per-node 4" in error.value.fix
    with pytest.raises(ArtifactForeign, match="process group '7'"):
        thunder.load(with_group(folder, size=2, name="7"), Layers())
