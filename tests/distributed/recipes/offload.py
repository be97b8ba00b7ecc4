"""Checks of shards in the memory of the CPU, run on each rank: steps equal those of `fully_shard` with its policy."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes.accumulated import reduce_at_the_end
from tests.distributed.recipes.accumulated import steps_of as accumulated_steps_of
from tests.distributed.recipes.saved import artifact_of
from tests.distributed.recipes.sharded_training import steps_of
from tests.distributed.recipes.training import DTYPES, EAGER, loss_of
from thunder_core.backend.parallel import offload, shards
from thunder_core.backend.parallel.groups import mesh_of
from thunder_core.compilation.compiler.for_device import own_compiler
from thunder_core.compilation.compiler.last_call import specializations_of
from thunder_core.foundation.errors import BadOption
from thunder_core.passes.transforms.fsdp import ShardParameters
from thunder_core.tracing.ir.proxy import TensorProxy

COPY = "torch.ops.aten._to_copy.default"
FINISH = "torch.ops.thunder_parallel.finish_copies.default"


DEVICE = torch.device("meta")  # of this machine, the device that autograd knows besides the CPU


def store(policy: offload.Offload, shard: torch.Tensor) -> torch.Tensor:
    """A copy of a shard, which this machine cannot pin."""
    assert isinstance(policy.pin_memory, bool)
    return shard.clone()


def mesh_of_devices(axes: Any, device: torch.device) -> Any:
    """The mesh of the ranks, as if they had GPUs."""
    assert device.type != "cuda"
    return mesh_of(axes, torch.device("cuda"))


@contextmanager
def stand_in_for_a_device() -> Iterator[None]:
    """The CPU as the device that computes: programs copy each shard, and the shards belong to a mesh of GPUs."""
    with (
        mock.patch.object(shards, "is_offloaded", lambda _: True),
        mock.patch.object(shards, "mesh_of", mesh_of_devices),
        mock.patch.object(offload.Offload, "store", store),
    ):
        yield


def eager(dtype: str, **options: Any) -> Any:
    """A model under `fully_shard` with its policy; this machine cannot pin memory."""
    model = Layers(DTYPES[dtype])
    for module in (*model.layers, model):
        fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False), **options)
    return model


def compiled_with(policy: object, dtype: str = "float64", recipe: Any = "fsdp", **options: Any) -> Any:
    """A model that the recipe compiles, of which the ranks begin with other values."""
    layers = Layers(DTYPES[dtype], seed=dist.get_rank())
    prefix = "" if recipe == "fsdp" else "fsdp."
    return thunder.compile(layers, recipe, without=EAGER, **{f"{prefix}offload_policy": policy}, **options)


def copies_in(trace: Any) -> list[tuple[str, bool]]:
    """The devices to which a trace copies offloaded tensors, and whether the program does not wait for the copies."""
    lines = (line for line in trace.bound_symbols if line.symbol.name == COPY and "non_blocking" in line.kwargs)
    return [(line.kwargs["device"].type, line.kwargs["non_blocking"]) for line in lines]


def assert_copies(compiled: Any, pin_memory: bool) -> None:
    """The traces copy each shard, and wait for the copies of gradients if the memory is pinned."""
    forward, backward = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    assert len(copies_in(forward)) == sum("_local_shards" in origin for origin in forward.origins.values()) > 6
    assert len(copies_in(backward)) > len([proxy for proxy in backward.output if proxy is not None])
    assert {kind for _, kind in (*copies_in(forward), *copies_in(backward))} == {pin_memory}
    assert any(line.symbol.name == FINISH for line in backward.bound_symbols) == pin_memory


def shards_of_the_cpu_are_not_copied() -> None:
    """On the CPU, the policy changes nothing, also where it would pin memory."""
    expected = steps_of(eager("float64"), "adamw", clip=0.1)
    for policy in (CPUOffloadPolicy(), "CPUOffloadPolicy(pin_memory=False)", OffloadPolicy()):
        compiled = compiled_with(policy)
        assert_equal(steps_of(compiled, "adamw", clip=0.1), expected)
        for trace in (thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]):
            assert not copies_in(trace)


def copied_shards_train_like_pytorch(dtype: str, pin_memory: bool, reduce_dtype: str = "") -> None:
    """With copies of each shard and gradient, as on a device; gradients, and the optimizer's state are on the CPU."""
    with stand_in_for_a_device():
        compiled = compiled_with(CPUOffloadPolicy(pin_memory), dtype, reduce_dtype=reduce_dtype)
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduce_dtype) if reduce_dtype else None)
    twin = eager(dtype, mp_policy=policy)
    assert_equal(steps_of(compiled, "adamw", clip=0.1), steps_of(twin, "adamw", clip=0.1))
    assert_copies(compiled, pin_memory)
    assert {parameter.device_mesh.device_type for parameter in compiled.parameters()} == {"cuda"}
    assert {parameter.device.type for parameter in compiled.parameters()} == {"cpu"}


def gradients_are_held_and_reduced() -> None:
    """Also with a layer that is frozen, and a backward that reads the setting after the forward."""
    with stand_in_for_a_device():
        compiled = compiled_with(CPUOffloadPolicy())
    twin = eager("float64")
    for model in (compiled, twin):
        model.layers[1].requires_grad_(False)
    assert_equal(accumulated_steps_of(compiled, reduce_at_the_end), accumulated_steps_of(twin, reduce_at_the_end))


def begins_on_the_meta_device() -> None:
    """Shards that `to_empty` allocates on the device are offloaded."""
    with stand_in_for_a_device():
        whole, twin = compiled_with(CPUOffloadPolicy()), eager("float64")
        with torch.device("meta"):
            model = Layers()
        model = thunder.compile(model, "fsdp", without=EAGER, offload_policy=CPUOffloadPolicy())
        model.to_empty(device="cpu")
        model.load_state_dict(whole.state_dict())
    assert_equal(steps_of(model), steps_of(twin))
    assert_copies(model, pin_memory=True)


def replicas_average_before_the_copy(reduce_dtype: str) -> None:
    """On a mesh of two axes, the device averages shards, and then copies them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    axes = {"fsdp.process_group": "shard", "ddp.process_group": "replicate", "fsdp.reduce_dtype": reduce_dtype}
    with stand_in_for_a_device():
        compiled = compiled_with(CPUOffloadPolicy(), recipe=["fsdp", "ddp"], **axes)
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduce_dtype) if reduce_dtype else None)
    assert_equal(steps_of(compiled), steps_of(eager("float64", mesh=mesh, mp_policy=policy)))
    assert_copies(compiled, pin_memory=True)
    names = [line.symbol.name for line in thunder.last_backward_traces(compiled)[-1].bound_symbols]
    last = max(index for index, name in enumerate(names) if ".all_reduce" in name)
    assert names.index(FINISH) > last


def trace_has_copies_to_a_device_and_back(pin_memory: bool) -> None:
    """The trace for another device, which does not run: parameters and gradients in the trace are on that device."""
    with stand_in_for_a_device():
        compiled = compiled_with(CPUOffloadPolicy(pin_memory))
    for module in compiled.modules():
        devices = module.__dict__.get(offload.DEVICES, {})
        devices.update(dict.fromkeys(devices, DEVICE))
        module._buffers.update({name: buffer.to(DEVICE) for name, buffer in module._buffers.items()})
    cache = specializations_of(compiled)
    compiler = own_compiler(cache)
    program = compiler(cache.subject, (torch.zeros(2, 3, dtype=torch.long, device=DEVICE),), {})
    forward = program.last("computation")
    parts = [proxy for proxy in forward.inputs if isinstance(proxy, TensorProxy) and proxy.device.type == "cpu"]
    assert len(parts) > 6
    assert copies_in(forward) == [("meta", pin_memory)] * len(parts)
    (transform,) = (one for one in compiler.transforms if isinstance(one, ShardParameters))
    backward = transform.before_claiming(program.last("backward"))
    to_device, back = (
        [(device, kind) for device, kind in copies_in(backward) if device == place] for place in ("meta", "cpu")
    )
    assert set(to_device) == {("meta", pin_memory)}
    gradients = [proxy for proxy in backward.output if proxy is not None]
    assert back == [("cpu", pin_memory)] * len(gradients)
    assert {proxy.device.type for proxy in gradients} == {"cpu"}
    reduced = (line for line in backward.bound_symbols if line.symbol.name == COPY and copies_in_line(line) == "cpu")
    assert {line.args[0].device for line in reduced} == {DEVICE}


def copies_in_line(line: Any) -> str:
    device = line.kwargs.get("device")
    return "" if device is None else str(device.type)


def regions_of_inductor_take_no_copies() -> None:
    """Weights are rounded to bfloat16 before the gather, behind the copy."""
    with stand_in_for_a_device():
        compiled = thunder.compile(Layers(torch.float32), ["fsdp", "bf16"], offload_policy=CPUOffloadPolicy())
    expected = thunder.compile(Layers(torch.float32), ["fsdp", "bf16"])
    assert_equal(steps_of(compiled), steps_of(expected))
    assert_copies(compiled, pin_memory=True)


def saved_program_copies_shards() -> None:
    """A loaded artifact shards the model again, with the policy of its recipe."""
    with stand_in_for_a_device():
        compiled = compiled_with(CPUOffloadPolicy())
        folder = artifact_of(compiled, loss_of, writer=0)
        loaded = thunder.load(folder, Layers(seed=dist.get_rank()), strict=True)
    assert_equal(steps_of(loaded), steps_of(eager("float64")))
    text = str(thunder.last_backward_traces(loaded)[-1])
    assert "non_blocking=True" in text
    assert "finish_copies" in text


def unknown_policies_are_refused() -> None:
    """Before the model changes, with the names of PyTorch's policies."""
    for policy in ("cpu", "CPUOffloadPolicy(pin=True)", "CPUOffloadPolicy(pin_memory=1)", True, [1]):
        model = Layers()
        with pytest.raises(BadOption, match=r"offload_policy"):
            thunder.compile(model, "fsdp", offload_policy=policy)
        assert all(type(parameter) is torch.nn.Parameter for parameter in model.parameters())
