"""Checks of training on a mesh of two axes, run on each of four ranks: ten steps equal those of `fully_shard`."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import contextlib
import copy
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers, tokens
from tests.distributed.recipes import accumulated, tensor_parallel
from tests.distributed.recipes.accumulated import reduce_at_the_end
from tests.distributed.recipes.saved import artifact_of, shared_folder
from tests.distributed.recipes.sharded_training import collectives, steps_of, whole
from tests.distributed.recipes.training import DTYPES, EAGER, OPTIMIZERS, STEPS, assert_close, loss_of
from thunder_core.backend.parallel.mesh_axes import group_name_in_programs
from thunder_core.foundation.errors import ArtifactForeign, CannotReplay, RecipeMismatch
from thunder_core.workflow.artifact.format.read import open_artifact


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
    assert_equal(*(steps_of(model, optimizer, steps=STEPS) for model in (compiled, expected)))
    for actual, wanted in zip(compiled.parameters(), expected.parameters(), strict=True):
        assert actual.placements == wanted.placements
        assert torch.equal(actual.to_local(), wanted.to_local())


def hybrid_clips_and_accumulates() -> None:
    assert_equal(steps_of(hybrid(), accumulate=2, clip=0.1), steps_of(twin(), accumulate=2, clip=0.1))


def hybrid_reduces_shards_over_replicas() -> None:
    compiled = hybrid()
    loss_of(compiled, 0).backward()
    _, backward = collectives(compiled)
    kinds = [(one.kind, one.group) for one in backward]
    shard, replicate = (group_name_in_programs(two_axes().get_group(name)) for name in ("shard", "replicate"))
    reductions = ["reduce_scatter_tensor", "all_reduce"]
    assert [kinds.count((kind, group)) for kind, group in zip(reductions, (shard, replicate), strict=True)] == [3, 3]
    scattered, reduced = (sum(one.bytes for one in backward if one.kind == kind) for kind in reductions)
    sizes = [[one.facts for one in backward if one.kind == kind] for kind in reductions]
    halves = [[f"{int(fact.split()[0]) // 2} bytes" for fact in facts if "bytes" in fact] for facts in sizes[0]]
    assert [[fact for fact in facts if "bytes" in fact] for facts in sizes[1]] == halves
    whole_rows = 12 * 6 + 2 * (6 + 6 + 8 * 6 + 8 + 6 * 7)
    assert (reduced, scattered) == (8 * whole_rows // 2, 8 * whole_rows)


def hybrid_state_is_that_of_pytorch() -> None:
    compiled, expected = hybrid(), twin()
    expected.load_state_dict(compiled.state_dict())
    assert_equal(*([*map(whole, model.parameters())] for model in (compiled, expected)))


def groups_without_a_mesh_cannot_be_saved() -> None:
    """The groups of the other ranks have other names, and no axis tells which groups belong together."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    own = pairs[dist.get_rank() % 2]
    compiled = thunder.compile(Layers(), "fsdp", without=EAGER, process_group=own.group_name)
    loss_of(compiled, 0).backward()
    with tempfile.TemporaryDirectory() as folder, pytest.raises(CannotReplay, match="a process group of 2 of 4 ranks"):
        thunder.save(compiled, f"{folder}/artifact")


def artifact_of_mesh_loads_on_every_rank(kind: str) -> None:
    model, new, loss = {
        "hybrid": (hybrid, lambda: Layers(seed=dist.get_rank()), loss_of),
        "both": (both_recipes, lambda: tensor_parallel.Layers(torch.float64), data_loss),
    }[kind]
    folder = artifact_of(model(), loss, writer=2)
    manifest = open_artifact(folder).manifest
    names = {"hybrid": {"replicate", "shard"}, "both": {"dp", "tp"}}[kind]
    assert {facts.axis for facts in (manifest.group, *manifest.more_groups)} == names
    loaded = thunder.load(folder, new(), strict=True)
    assert_equal(steps_of(loaded, loss=loss), steps_of(model(), loss=loss))


def with_groups(folder: Path, **facts: Any) -> Path:
    """The artifact as if its first axis had other facts; the manifest keeps its own digest valid."""
    dist.barrier()
    manifest = open_artifact(folder).manifest
    manifest = manifest.model_copy(update={"group": manifest.group.model_copy(update=facts)}).with_own_digest()
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
    dist.barrier()
    return folder


OTHER_MESHES = {
    "for the mesh dp=2,tp=2 of 8 ranks, but there are 4 here": {"world_size": 8},
    "for the mesh dp=2,tp=4, but the axis 'tp' here has 2 ranks": {"size": 4},
    "for the mesh tp=2,dp=2, but the axis 'tp' here has 2 ranks": {"stride": 4},
    "for the mesh dp=2,other=2, but no mesh here has the axis 'other'": {"axis": "other"},
    "the process group 'dp_2x2', but this name is already": {"name": "dp_2x2"},
}


def artifact_of_another_mesh_is_refused() -> None:
    folder = artifact_of(both_recipes(), data_loss, writer=2)
    facts = open_artifact(folder).manifest.group.model_dump()
    for words, changes in OTHER_MESHES.items():
        with pytest.raises(ArtifactForeign, match=words) as error:
            thunder.load(with_groups(folder, **{**facts, **changes}), tensor_parallel.Layers(torch.float64))
        assert ("init_device_mesh" in error.value.fix) == ("but the axis" in words or "no mesh" in words)


def axes_are_named_as_process_groups() -> None:
    """The name of an axis is enough, and another mesh with this axis and other ranks needs the name of a group."""
    two_axes()
    names = {"fsdp.process_group": "shard", "ddp.process_group": "replicate"}
    compiled = thunder.compile(Layers(), ["ddp", "fsdp"], without=EAGER, **names)
    loss_of(compiled, 0).backward()
    assert {one.group for one in collectives(compiled)[1]} == {"shard_2x1", "replicate_2x2"}
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("ambiguous", "inner"))
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "ambiguous"))
    with pytest.raises(RecipeMismatch, match="several meshes of this process have an axis 'ambiguous'"):
        thunder.compile(Layers(), "fsdp", without=EAGER, process_group="ambiguous")


def another_mesh_with_the_same_names_is_another_group() -> None:
    """Programs of both meshes name the group of their own mesh."""
    shapes = (
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("first", "axis")),
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("axis", "second")),
    )
    models = [
        thunder.compile(Layers(seed=3), "fsdp", without=EAGER, process_group=mesh.get_group("axis").group_name)
        for mesh in shapes
    ]
    for model, mesh in zip(models, shapes, strict=True):
        expected = Layers(seed=3)
        for layer in expected.layers:
            fully_shard(layer, mesh=mesh["axis"])
        assert_equal(steps_of(model, steps=2), steps_of(fully_shard(expected, mesh=mesh["axis"]), steps=2))
    assert [{one.group for one in collectives(model)[0]} for model in models] == [{"axis_2x1"}, {"axis_2x2"}]


def names_do_not_depend_on_the_order_of_use() -> None:
    """Ranks ask for names in different orders, and get the same names; equal axes are numbered as they were created."""
    shapes = {"first": ("axis", "inner"), "second": ("outer", "axis"), "third": ("axis", "inner")}
    meshes = {name: init_device_mesh("cpu", (2, 2), mesh_dim_names=axes) for name, axes in shapes.items()}
    order = sorted(meshes, reverse=bool(dist.get_rank() % 2))
    names = {name: group_name_in_programs(meshes[name].get_group("axis")) for name in order}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {name: names[name] for name in meshes})
    assert all(facts == gathered[0] for facts in gathered)
    assert len(set(names.values())) == 3
    assert names["second"].startswith("axis_2x1")
    for name, mesh in meshes.items():
        compiled = thunder.compile(Layers(), "fsdp", without=EAGER, process_group=mesh.get_group("axis").group_name)
        loss_of(compiled, 0).backward()
        dist.all_gather_object(gathered, str(thunder.last_traces(compiled)[-1]))
        assert all(text == gathered[0] and names[name] in text for text in gathered)
    for mesh in meshes.values():
        for group in mesh.get_all_groups():
            dist.destroy_process_group(group)


def four_shards_equal_pytorch() -> None:
    compiled = thunder.compile(Layers(seed=dist.get_rank()), "fsdp", without=EAGER)
    expected = Layers()
    for layer in expected.layers:
        fully_shard(layer)
    assert_equal(steps_of(compiled), steps_of(fully_shard(expected)))


def hybrid_accumulates_without_communication() -> None:
    model = hybrid()
    assert_equal(accumulated.steps_of(model, reduce_at_the_end), accumulated.steps_of(twin(), reduce_at_the_end))
    with model.no_sync():
        loss_of(model, 0).backward()
        _, backward = collectives(model)
        assert {one.kind for one in backward} == {"all_gather_into_tensor_coalesced"}


def hybrid_refusals() -> None:
    world = dist.group.WORLD.group_name
    groups = {**groups_of(two_axes()), "ddp.process_group": world}
    with pytest.raises(RecipeMismatch, match="not the axes of a mesh"):
        thunder.compile(Layers(), ["ddp", "fsdp"], without=EAGER, **groups)


@functools.cache
def parallel_axes() -> DeviceMesh:
    """A mesh of two shards, each of two parts of tensor parallelism."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def data_loss(model: Any, step: int) -> torch.Tensor:
    """A loss of tokens that are the same on the ranks of a group of tensor parallelism."""
    batch = tokens(step, parallel_axes().get_local_rank("dp"))
    result: torch.Tensor = model(batch).float().pow(2).mean()
    return result


def both_recipes(
    dtype: torch.dtype = torch.float64, recipes: Sequence[str] = ("fsdp", "tensor-parallel"), **options: Any
) -> Any:
    """A model on the mesh, of which the ranks begin with other values."""
    names = {
        "fsdp.process_group": parallel_axes().get_group("dp").group_name,
        "tensor-parallel.process_group": parallel_axes().get_group("tp").group_name,
        "parallelize_plan": tensor_parallel.PLAN,
    }
    model = tensor_parallel.Layers(dtype, seed=dist.get_rank())
    return thunder.compile(model, list(recipes), without=EAGER, **names, **options)


def both_by_pytorch(dtype: torch.dtype = torch.float64) -> Any:
    styles = {name: tensor_parallel.STYLES[style]() for name, style in tensor_parallel.PLAN.items()}
    model = parallelize_module(tensor_parallel.Layers(dtype), parallel_axes()["tp"], styles)
    for layer in model.layers:
        fully_shard(layer, mesh=parallel_axes()["dp"])
    return fully_shard(model, mesh=parallel_axes()["dp"])


def both_equal_pytorch(dtype: str, optimizer: str, reshard_after_forward: bool) -> None:
    actual = both_recipes(DTYPES[dtype], reshard_after_forward=reshard_after_forward)
    expected = both_by_pytorch(DTYPES[dtype])
    assert_close(
        *(steps_of(model, optimizer, loss=data_loss, steps=STEPS) for model in (actual, expected)),
        tensor_parallel.ROUNDING[dtype],
    )
    for parameter, wanted in zip(actual.parameters(), expected.parameters(), strict=True):
        assert parameter.placements == wanted.placements
        assert parameter.device_mesh == wanted.device_mesh
        assert parameter.to_local().shape == wanted.to_local().shape


def both_give_one_program_in_either_order() -> None:
    texts = []
    for recipes in (("fsdp", "tensor-parallel"), ("tensor-parallel", "fsdp")):
        model = both_recipes(recipes=recipes)
        data_loss(model, 0).backward()
        traces = thunder.last_traces(model)[-1], thunder.last_backward_traces(model)[-1]
        texts.append([str(trace) for trace in traces])
    assert texts[0] == texts[1]
    forward, backward = collectives(model)
    dp, tp = (group_name_in_programs(parallel_axes().get_group(name)) for name in ("dp", "tp"))
    kinds = {(one.kind, one.group) for one in (*forward, *backward)}
    gathers, scatters = "all_gather_into_tensor_coalesced", "reduce_scatter_tensor"
    assert kinds == {("all_reduce", tp), (gathers, dp), (scatters, dp)}


def both_accumulate_without_communication() -> None:
    def step_of(model: Any, step: int) -> None:
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            data_loss(model, 2 * step + part).backward()

    models = both_recipes(), both_by_pytorch()
    assert_close(*(accumulated.steps_of(model, step_of, steps=3) for model in models), 1e-12)


def both_have_the_state_of_pytorch() -> None:
    """State dicts load in both directions, and a checkpoint of one loads into the other."""
    actual, expected = both_recipes(), both_by_pytorch()
    data_loss(actual, 0).backward()
    OPTIMIZERS["sgd"](actual.parameters()).step()
    expected.load_state_dict(actual.state_dict())
    assert_equal(*([*map(whole, model.parameters())] for model in (actual, expected)))
    assert_close([data_loss(actual, 1)], [data_loss(expected, 1)], 1e-12)
    folder = shared_folder()
    checkpoint.save(expected.state_dict(), checkpoint_id=folder)
    other = both_recipes()
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    assert_equal(*([*map(whole, model.parameters())] for model in (other, expected)))


def both_with_a_transformer() -> None:
    """A model with norms of heads, whose gradients are summed over the group of tensor parallelism."""
    names = {
        "fsdp.process_group": parallel_axes().get_group("dp").group_name,
        "tensor-parallel.process_group": parallel_axes().get_group("tp").group_name,
    }

    def loss(model: Any, step: int) -> torch.Tensor:
        batch = tokens(step, parallel_axes().get_local_rank("dp"))
        result: torch.Tensor = model(input_ids=batch, labels=batch.clone()).loss
        return result

    expected = tensor_parallel.small(Qwen3ForCausalLM, Qwen3Config)
    actual = thunder.compile(copy.deepcopy(expected), ["default", "fsdp", "tensor-parallel"], without=EAGER, **names)
    for layer in expected.model.layers:
        fully_shard(layer, mesh=parallel_axes()["dp"])
    fully_shard(expected, mesh=parallel_axes()["dp"])
    assert_close(
        *(steps_of(model, loss=loss, steps=3) for model in (actual, expected)), tensor_parallel.ROUNDING["float32"]
    )


def replicated_parts(recipes: Sequence[str] = ("ddp", "tensor-parallel"), **names: str) -> Any:
    """A model divided by tensor parallelism, which is replicated along the other axis of a mesh."""
    model = tensor_parallel.Layers(torch.float64, seed=dist.get_rank())
    names = names or {"ddp.process_group": "dp", "tensor-parallel.process_group": "tp"}
    parallel_axes()
    return thunder.compile(model, list(recipes), without=EAGER, parallelize_plan=tensor_parallel.PLAN, **names)


def loss_in_parts(model: Any, step: int, replica: int) -> torch.Tensor:
    """The loss of the batch of a replica."""
    result: torch.Tensor = model(tokens(step, replica)).pow(2).mean()
    return result


def in_parts(model: Any, step: int) -> None:
    """The gradients of two batches; on the model of one process, the averages over the batches of both replicas."""
    for part in range(2):
        if hasattr(model, "no_sync"):
            with contextlib.nullcontext() if part else model.no_sync():
                loss_in_parts(model, 2 * step + part, parallel_axes().get_local_rank("dp")).backward()
        else:
            for replica in range(2):
                (loss_in_parts(model, 2 * step + part, replica) / 2).backward()


def replicated_parts_equal_one_process(optimizer: str) -> None:
    models = replicated_parts(), tensor_parallel.Layers(torch.float64)
    assert_close(*(accumulated.steps_of(model, in_parts, optimizer, steps=3) for model in models), 1e-9)
    forward, backward = collectives(models[0])
    kinds = {(one.kind, one.group) for one in (*forward, *backward)}
    assert kinds == {("all_reduce", "tp_2x1"), ("all_reduce", "dp_2x2")}


def replicated_parts_equal_pytorch() -> None:
    """The gradients of full parameters are those of `DistributedDataParallel` around parallelized layers."""
    styles = {name: tensor_parallel.STYLES[style]() for name, style in tensor_parallel.PLAN.items()}
    divided = parallelize_module(tensor_parallel.Layers(torch.float64), parallel_axes()["tp"], styles)
    _pre_dp_module_transform(divided)
    expected: Any = DistributedDataParallel(divided, process_group=parallel_axes().get_group("dp"))
    actual = replicated_parts()
    for step in range(2):
        losses = [data_loss(model, step) for model in (actual, expected)]
        for loss in losses:
            loss.backward()
        names = [name for name, _ in expected.module.named_parameters()]  # without those of divided layers
        assert "table.weight" in names
        pairs = ([model.get_parameter(name).grad for name in names] for model in (actual, expected.module))
        assert_close(*([loss, *gradients] for loss, gradients in zip(losses, pairs, strict=True)), 1e-6)


def all_three_equal_one_process() -> None:
    """Replicas of shards of parts: one of the axes has one rank."""
    init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("outer_of_three", "middle", "inner"))
    names = {"ddp": "outer_of_three", "fsdp": "middle", "tensor-parallel": "inner"}
    model = replicated_parts((*names,), **{f"{recipe}.process_group": axis for recipe, axis in names.items()})
    models = model, tensor_parallel.Layers(torch.float64)
    assert_close(*(accumulated.steps_of(model, in_parts, steps=2) for model in models), 1e-9)


def hybrid_reduces_in_another_dtype(reduce_dtype: str) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduce_dtype))
    pair = (lambda: hybrid(torch.bfloat16, reduce_dtype=reduce_dtype)), (lambda: fully_shard_with(policy))
    assert_equal(*(steps_of(make(), steps=3) for make in pair))
    assert_equal(*(accumulated.steps_of(make(), reduce_at_the_end, steps=2) for make in pair))


def fully_shard_with(policy: MixedPrecisionPolicy) -> Any:
    """A model under `fully_shard` on the mesh of two axes, with a policy."""
    model: Any = Layers(torch.bfloat16)
    for module in (*model.layers, model):
        fully_shard(module, mesh=two_axes(), mp_policy=policy)
    return model
