"""Checks of training on a mesh of two axes, run on each of four ranks: ten steps equal those of `fully_shard`."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import functools
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.sharded_training import collectives, steps_of, whole
from tests.distributed.training import DTYPES, EAGER, loss_of
from thunder_core.foundation.errors import CannotReplay, RecipeMismatch, WrongInputs


@functools.cache
def two_axes() -> DeviceMesh:
    """A mesh of two replicas, each of two shards."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def groups_of(mesh: DeviceMesh) -> dict[str, str]:
    """The options of the sum of `fsdp` and `ddp` on a mesh."""
    return {
        "fsdp.process_group": mesh.get_group("shard").group_name,
        "ddp.process_group": mesh.get_group("replicate").group_name,
    }


def hybrid(dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """A model on the mesh, of which the ranks begin with other values."""
    model = Layers(dtype, seed=dist.get_rank())
    return thunder.compile(model, ["ddp", "fsdp"], without=EAGER, **groups_of(two_axes()), **options)


def twin(dtype: torch.dtype = torch.float64) -> Any:
    """The same model under `fully_shard` on the mesh."""
    model = Layers(dtype)
    for layer in model.layers:
        fully_shard(layer, mesh=two_axes())
    return fully_shard(model, mesh=two_axes())


def hybrid_equals_pytorch(dtype: str, optimizer: str, reshard_after_forward: bool) -> None:
    compiled, expected = hybrid(DTYPES[dtype], reshard_after_forward=reshard_after_forward), twin(DTYPES[dtype])
    assert_equal(steps_of(compiled, optimizer), steps_of(expected, optimizer))
    for actual, other in zip(compiled.parameters(), expected.parameters(), strict=True):
        assert actual.placements == other.placements
        assert torch.equal(actual.to_local(), other.to_local())


def hybrid_clips_and_accumulates() -> None:
    assert_equal(steps_of(hybrid(), accumulate=2, clip=0.1), steps_of(twin(), accumulate=2, clip=0.1))


def hybrid_reduces_shards_over_replicas() -> None:
    compiled = hybrid()
    loss_of(compiled, 0).backward()
    _, backward = collectives(compiled)
    kinds = [(one.kind, one.group) for one in backward]
    shard, replicate = (two_axes().get_group(name).group_name for name in ("shard", "replicate"))
    reductions = ["reduce_scatter_tensor_coalesced", "all_reduce_coalesced"]
    assert [kinds.count((kind, group)) for kind, group in zip(reductions, (shard, replicate), strict=True)] == [3, 3]
    scattered, reduced = (sum(one.bytes for one in backward if one.kind == kind) for kind in reductions)
    whole_rows = 12 * 6 + 2 * (6 + 6 + 8 * 6 + 8 + 6 * 7)
    assert (reduced, scattered) == (8 * whole_rows // 2, 8 * whole_rows)


def hybrid_state_is_that_of_pytorch() -> None:
    compiled, expected = hybrid(), twin()
    expected.load_state_dict(compiled.state_dict())
    assert_equal(*([*map(whole, model.parameters())] for model in (compiled, expected)))


def hybrid_cannot_be_saved() -> None:
    compiled = hybrid()
    loss_of(compiled, 0).backward()
    with tempfile.TemporaryDirectory() as folder, pytest.raises(CannotReplay, match="a process group of 2 of 4 ranks"):
        thunder.save(compiled, f"{folder}/artifact")


def four_shards_equal_pytorch() -> None:
    compiled = thunder.compile(Layers(seed=dist.get_rank()), "fsdp", without=EAGER)
    expected = Layers()
    for layer in expected.layers:
        fully_shard(layer)
    assert_equal(steps_of(compiled), steps_of(fully_shard(expected)))


def hybrid_refusals() -> None:
    with pytest.raises(WrongInputs, match="reduced at each backward"), hybrid().no_sync():
        pass
    world = dist.group.WORLD.group_name
    groups = {**groups_of(two_axes()), "ddp.process_group": world}
    with pytest.raises(RecipeMismatch, match="not the axes of a mesh"):
        thunder.compile(Layers(), ["ddp", "fsdp"], without=EAGER, **groups)
