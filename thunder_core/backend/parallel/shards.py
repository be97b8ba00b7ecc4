"""Shard a model: each rank keeps some rows of each parameter, and gathers the full parameter when it is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from thunder_core.backend.parallel.buckets import layer_of_path
from thunder_core.backend.parallel.groups import mesh_of
from thunder_core.backend.parallel.local_parts import (
    DATA_PARALLEL_GROUP,
    DIVIDED_OVER,
    LEAVES,
    REFUSING_METHODS,
    Conversion,
    Distributed,
    add_gradient,
    apply_to_rest,
    convert_rest,
    distributed_parameter,
    distributor,
    local_of,
    own_parameters,
    placement_of_part,
)
from thunder_core.backend.parallel.mesh_axes import group_name_in_programs
from thunder_core.backend.parallel.offload import DEVICES, Offload, is_offloaded
from thunder_core.backend.parallel.operators import (
    OPERATORS,
    average_over,
    reduced_shard,
    rows_of_rank,
    shard_rows,
)
from thunder_core.backend.parallel.replicas import REPLICATES, broadcast_values
from thunder_core.backend.parallel.unreduced_gradients import (
    METHODS,
    SYNCHRONIZATION,
    UNREDUCED,
    UNSHARDED,
    Reduce,
    Synchronization,
    UnreducedGradient,
    register_accumulation_hook,
    unsharded_leaf,
)
from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.tracing.capture.torch_facts.modes import is_recording
from thunder_core.tracing.extension.subclass import subclass_of
from thunder_core.tracing.library.collectives import group_of

FIX = "use the recipe `ddp`, which keeps whole parameters, or change the module"
UNDIVIDED = (
    "pass the module without `fully_shard` or `parallelize_module`; the recipes `fsdp` and `tensor-parallel` divide it"
)


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of which this rank keeps some rows.

    `parameter` is the DTensor parameter, as in `fully_shard`, and `leaf` is the tensor that programs read. `rows` is
    the number of rows of all ranks, and `path` the first path of the parameter in the model. If the leaf is offloaded,
    `device` is the device that computes; otherwise None.
    """

    parameter: torch.nn.Parameter
    leaf: torch.Tensor
    unsharded: torch.Tensor | None
    rows: int
    path: str
    device: torch.device | None = None


@dataclass(frozen=True)
class Sharding:
    """The sharding of models over a process group and its mesh.

    If `reshard_after_forward` is set, a backward gathers parameters again. Gradients are reduced in `reduce_dtype`, or
    in their own dtype if this is None, and then averaged over the group of replicas, if there is one. `parts_mesh` is
    the mesh of the parameters that tensor parallelism divides. With `offload`, shards are in the memory of the CPU.
    """

    group: Any
    mesh: DeviceMesh
    reshard_after_forward: bool
    reduce_dtype: torch.dtype | None = None
    replicate_group_name: str | None = None
    parts_mesh: DeviceMesh | None = None
    offload: Offload | None = None

    def shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the parameters of a model by shards in place; all ranks get the values of the first rank."""
        require_shardable(model)
        broadcast_values(list(model.buffers()), self.group)
        synchronization = Synchronization()
        shards: dict[int, ShardedParameter] = {}
        materialize = Materialization(self, synchronization)
        for path, module in list(model.named_modules()):
            own = own_parameters(module)
            for name, parameter in own.items():
                if id(parameter) not in shards:
                    shards[id(parameter)] = self._shard_of(module, name, f"{path}.{name}".lstrip("."), synchronization)
            if own:
                self._gather_in(module, {name: shards[id(parameter)] for name, parameter in own.items()}, materialize)
                paths = {name: shards[id(parameter)].path for name, parameter in own.items()}
                synchronization.holders.append((module, paths))
            if path == layer_of_path(path):
                module.__dict__[SYNCHRONIZATION] = synchronization, path
                module.__class__ = subclass_of(type(module), METHODS)
        synchronization.update()
        return model

    def _shard_of(
        self, module: torch.nn.Module, name: str, path: str, synchronization: Synchronization
    ) -> ShardedParameter:
        """Return the shard of this rank of a module's parameter.

        The tensor that programs read has the same number of rows on each rank, padded with zeros, so that all ranks
        have the same program.
        """
        parameter = module.__dict__.get(LEAVES, {}).get(name, own_parameters(module)[name]).detach()
        broadcast_values([parameter], self.group)
        start, rows = rows_of_rank(parameter.shape[0], self.group.rank(), self.group.size())
        leaf = parameter.new_zeros((shard_rows(parameter.shape[0], self.group.size()), *parameter.shape[1:]))
        leaf.narrow(0, 0, rows).copy_(parameter.narrow(0, start, rows))
        return self._shard_with(leaf, parameter.shape[0], module, name, path, synchronization)

    def _shard_with(
        self,
        leaf: torch.Tensor,
        rows: int,
        module: torch.nn.Module,
        name: str,
        path: str,
        synchronization: Synchronization,
    ) -> ShardedParameter:
        """Return the shard of a module's parameter with the values of this rank, and the rows of all ranks.

        With `offload`, the tensor that programs read is a copy in the memory of the CPU.
        """
        parameter, device, unsharded_like = own_parameters(module)[name], None, leaf
        if self.offload is not None and not leaf.is_meta and is_offloaded(leaf.device):
            device, leaf = leaf.device, self.offload.store(leaf)
        local = leaf.narrow(0, 0, rows_of_rank(rows, self.group.rank(), self.group.size())[1])
        mesh, placements = self._placement_of(module, name)
        shard = distributed_parameter(parameter, leaf, local, mesh, placements)
        unsharded = None
        if leaf.is_floating_point() or leaf.is_complex():
            unsharded = unsharded_leaf(unsharded_like, rows, parameter.requires_grad)
            reduce = self._make_reduce(weakref.ref(shard), distributor(mesh, placements))
            unreduced_gradient = UnreducedGradient(unsharded, reduce, self.reduce_dtype, synchronization)
            register_accumulation_hook(unreduced_gradient)
            setattr(leaf, UNREDUCED, unreduced_gradient)
            synchronization.unreduced_gradients[path] = unreduced_gradient
        return ShardedParameter(shard, leaf, unsharded, rows, path, device)

    def _placement_of(self, module: torch.nn.Module, name: str) -> tuple[DeviceMesh, list[Placement]]:
        """Return the mesh and the placements of a module's parameter.

        Rows are divided along the axis `group` of the mesh, and replicated along the axis of replicas.
        """
        replicas: list[Placement] = [Replicate() for _ in range(self.mesh.ndim - 1)]
        part = placement_of_part(module, name)
        if part is None or self.parts_mesh is None:
            return self.mesh, [*replicas, Shard(0)]
        ranks = self.parts_mesh.size(self.parts_mesh.ndim - 1)
        rows = _StridedShard(0, split_factor=ranks) if part == Shard(0) else Shard(0)
        return self.parts_mesh, [*replicas, rows, part]

    def _make_reduce(self, parameter_of: Callable[[], torch.nn.Parameter | None], distributed: Distributed) -> Reduce:
        """Return a function that reduces a gradient over the ranks, and adds this rank's shard to the `.grad`."""

        def reduce(gradient: torch.Tensor) -> None:
            parameter = parameter_of()
            shard = reduced_shard(gradient, group_name_in_programs(self.group))
            if self.replicate_group_name is not None:
                shard = average_over(shard, self.replicate_group_name)
            if parameter is not None:
                add_gradient(parameter, shard.to(parameter.dtype).to(local_of(parameter).device), distributed)

        return reduce

    def _gather_in(
        self, module: torch.nn.Module, shards: Mapping[str, ShardedParameter], materialize: Materialization
    ) -> None:
        """Change a module's class so that a program that reads a parameter gathers it from the shards."""
        keep_shards(module, shards)
        data_group = module.__dict__.get(DATA_PARALLEL_GROUP)
        gathers = {name: self._gathering_property(name, shards[name].rows, data_group) for name in shards}
        module.__class__ = subclass_of(
            type(module), {**REFUSING_METHODS, "_apply": materialize.method(shards), **gathers}
        )

    def _gathering_property(self, name: str, rows: int, data_group: str | None) -> property:
        """Return a property that gathers a parameter of a module when a program reads the property.

        `data_group` is the group in which each rank uses the parameter for its part of the data, or None.
        """
        group_name, reshard = group_name_in_programs(self.group), self.reshard_after_forward
        offloads = self.offload is not None

        def gather(self: Any) -> torch.Tensor:
            if not is_recording():  # outside of tracing, return the parameter itself, which can be written to
                parameter: torch.Tensor = self._parameters[name]
                return parameter
            unsharded = self._unsharded_leaves[name] if name in self._unsynchronized else None
            local = self._local_shards[name]
            device = (None, self._compute_devices[name]) if offloads else ()
            result: torch.Tensor = OPERATORS.gather_parameter(local, rows, group_name, reshard, unsharded, *device)
            return result if data_group is None else OPERATORS.copy_to_group(result, data_group)

        return property(gather)


def keep_shards(module: torch.nn.Module, shards: Mapping[str, ShardedParameter]) -> None:
    """Replace the parameters of a module, and the tensors that programs read, by shards."""
    module._parameters.update({name: shard.parameter for name, shard in shards.items()})
    module.__dict__[LEAVES] = {name: shard.leaf for name, shard in shards.items()}
    unsharded = {name: shard.unsharded for name, shard in shards.items() if shard.unsharded is not None}
    module.__dict__[UNSHARDED] = unsharded
    module.__dict__[DEVICES] = {name: shard.device for name, shard in shards.items()}


@dataclass(frozen=True, eq=False)
class Materialization:
    """The allocation of memory by `to_empty` for a model whose shards are on the meta device.

    `shards` maps the parameters on the meta device to their shards, because modules may share parameters.
    """

    sharding: Sharding
    synchronization: Synchronization
    shards: dict[torch.nn.Parameter, ShardedParameter] = field(default_factory=dict)

    def method(self, shards: Mapping[str, ShardedParameter]) -> Callable[..., Any]:
        """Return the method `_apply` of a module with shards; `to_empty` allocates shards on the meta device."""

        def apply(module: torch.nn.Module, fn: Conversion, recurse: bool = True) -> Any:
            leaves = module.__dict__[LEAVES]
            empty = {name: fn(leaf.detach()) for name, leaf in leaves.items() if leaf.is_meta}
            if len(empty) < len(leaves) or any(leaf.is_meta for leaf in empty.values()):
                return convert_rest(module, fn, recurse)
            parameters = own_parameters(module)
            for name, parameter in parameters.items():
                if parameter not in self.shards:
                    leaf, (rows, path) = empty[name], (shards[name].rows, shards[name].path)
                    args = module, name, path, self.synchronization
                    self.shards[parameter] = self.sharding._shard_with(leaf, rows, *args)
            apply_to_rest(module, fn, recurse)
            keep_shards(module, {name: self.shards[parameter] for name, parameter in parameters.items()})
            return module

        return apply


def follow_requires_grad(model: torch.nn.Module) -> Callable[[], None]:
    """Return a function that copies the current `requires_grad` of each parameter to the tensor that programs read."""
    holders = [module for module in model.modules() if LEAVES in module.__dict__]

    def follow() -> None:
        for module in holders:
            for name, leaf in module.__dict__[LEAVES].items():
                shard = module._parameters[name]
                if shard is not None and leaf.requires_grad != shard.requires_grad:
                    leaf.requires_grad_(shard.requires_grad)
                    if (unreduced_gradient := getattr(leaf, UNREDUCED, None)) is not None:
                        unreduced_gradient.unsharded.requires_grad_(shard.requires_grad)

    return follow


def sharding_in(
    group: object,
    model: torch.nn.Module,
    *,
    reshard_after_forward: bool,
    reduce_dtype: torch.dtype | None,
    offload: Offload | None = None,
) -> Sharding:
    """Return the sharding of a model over a process group.

    The mesh has an axis for the replicas of the model, and one for tensor parallelism, if the model has these.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    replicas, parts = model.__dict__.get(REPLICATES), model.__dict__.get(DIVIDED_OVER)
    axes = [("shard", group)] if replicas is None else [("replicate", group_of(replicas)), ("shard", group)]
    if parts is None:
        mesh = mesh_of(axes, device)
        return Sharding(group, mesh, reshard_after_forward, reduce_dtype, replicas, offload=offload)
    parts_mesh = mesh_of([*axes, ("tp", group_of(parts))], device)
    mesh = parts_mesh[tuple(parts_mesh.mesh_dim_names or ())[:-1]]
    return Sharding(group, mesh, reshard_after_forward, reduce_dtype, replicas, parts_mesh, offload)


def require_shardable(model: torch.nn.Module) -> None:
    """Raise `RecipeMismatch` with the first parameter that cannot be sharded."""
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}
    divided = {f"{path}.{name}" for path, module in model.named_modules() for name in module.__dict__.get(LEAVES, ())}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise RecipeMismatch(f"the parameter {name} has no rows to shard", fix=FIX)
        if isinstance(parameter, DTensor) and name not in divided:
            raise RecipeMismatch(f"the parameter {name} is a DTensor", fix=UNDIVIDED)
        if type(parameter) is not torch.nn.Parameter and name not in divided:
            raise RecipeMismatch(f"the parameter {name} is of class {type(parameter).__name__}", fix=FIX)
        if not parameter.is_contiguous():
            raise RecipeMismatch(f"the parameter {name} is not contiguous", fix=FIX)
    for path, module in model.named_modules():
        values = unregistered_values(module)
        name_outside = next((parameters[id(value)] for value in values if id(value) in parameters), None)
        if name_outside is not None:
            kind = type(module).__name__
            what = f"an attribute of the {f'{kind} {path}'.strip()} also holds the parameter {name_outside}"
            raise RecipeMismatch(what, fix=FIX)


def unregistered_values(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the values of a module's attributes, without its registered parameters, and the items of containers."""
    for name, value in vars(module).items():
        if name in ("_parameters", "_modules"):
            continue
        yield value
        if isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
