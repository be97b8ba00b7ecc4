"""Shard a model: each rank keeps some rows of each parameter, and gathers the full parameter when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from thunder_core.backend.parallel.groups import mesh_of
from thunder_core.backend.parallel.local_parts import (
    LEAVES,
    REFUSALS,
    distributed_parameter,
    own_parameters,
    subclass_like,
)
from thunder_core.backend.parallel.operators import OPERATORS, rows_of_rank, shard_rows
from thunder_core.backend.parallel.replicas import REPLICATES, broadcast_values
from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.tracing.capture.torch_facts.modes import is_recording

FIX = "use the recipe `ddp`, which keeps whole parameters, or change the module"


@dataclass(frozen=True)
class Sharding:
    """The sharding of models over a process group and its mesh.

    If `reshard_after_forward` is set, a backward gathers parameters again.
    """

    group: Any
    mesh: DeviceMesh
    reshard_after_forward: bool

    def shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the parameters of a model by shards in place; all ranks get the values of the first rank."""
        require_shardable(model)
        broadcast_values(list(model.buffers()), self.group)
        shards: dict[int, torch.nn.Parameter] = {}
        leaves: dict[int, torch.Tensor] = {}
        for module in list(model.modules()):
            own = own_parameters(module)
            for name, parameter in own.items():
                if id(parameter) not in shards:
                    shards[id(parameter)], leaves[id(parameter)] = self._shard_of(parameter)
                module._parameters[name] = shards[id(parameter)]
            if own:
                module.__dict__[LEAVES] = {name: leaves[id(parameter)] for name, parameter in own.items()}
                rows = {name: parameter.shape[0] for name, parameter in own.items()}
                module.__class__ = self._class_of(type(module), rows)
        return model

    def _shard_of(self, parameter: torch.nn.Parameter) -> tuple[torch.nn.Parameter, torch.Tensor]:
        """Return the shard of this rank as a DTensor parameter, as in `fully_shard`, and as the tensor for programs.

        The tensor for programs has the same number of rows on each rank, padded with zeros, so that all ranks have the
        same program.
        """
        broadcast_values([parameter], self.group)
        size = self.group.size()
        start, rows = rows_of_rank(parameter.shape[0], self.group.rank(), size)
        leaf = parameter.detach().new_zeros((shard_rows(parameter.shape[0], size), *parameter.shape[1:]))
        local = leaf.narrow(0, 0, rows)
        local.copy_(parameter.detach().narrow(0, start, rows))
        return distributed_parameter(parameter, leaf, local, self.mesh, self._placements), leaf

    @property
    def _placements(self) -> list[Placement]:
        """Rows are divided along the last axis of the mesh, and replicated along the other axis."""
        return [*(Replicate() for _ in range(self.mesh.ndim - 1)), Shard(0)]

    def _class_of(self, kind: Any, rows: dict[str, int]) -> type[torch.nn.Module]:
        """Return a subclass of a module's class that gathers each parameter when it is read."""
        group_name, reshard = self.group.group_name, self.reshard_after_forward
        gathered = {name: gathering(name, count, group_name, reshard) for name, count in rows.items()}
        made: type[torch.nn.Module] = subclass_like(kind, {**REFUSALS, **gathered})
        return made


def gathering(name: str, rows: int, group_name: str, reshard_after_forward: bool) -> property:
    """Return the property that gathers a parameter of a module."""

    def gather(self: Any) -> torch.Tensor:
        if not is_recording():  # outside of tracing, return the parameter itself, which can be written to
            parameter: torch.Tensor = self._parameters[name]
            return parameter
        local = self._local_shards[name]
        result: torch.Tensor = OPERATORS.gather_parameter(local, rows, group_name, reshard_after_forward)
        return result

    return property(gather)


def follow_requires_grad(model: torch.nn.Module) -> Callable[[], None]:
    """Return a function that copies the current `requires_grad` of each parameter to the tensor that programs read."""
    holders = [module for module in model.modules() if LEAVES in module.__dict__]
    pairs = [(module._parameters[name], leaf) for module in holders for name, leaf in module.__dict__[LEAVES].items()]

    def follow() -> None:
        for shard, leaf in pairs:
            if shard is not None and leaf.requires_grad != shard.requires_grad:
                leaf.requires_grad_(shard.requires_grad)

    return follow


def sharding_in(group: Any, model: torch.nn.Module, *, reshard_after_forward: bool) -> Sharding:
    """Return the sharding of a model over a process group; if the model is a replica, the mesh has two axes."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return Sharding(group, mesh_of(group, model.__dict__.get(REPLICATES), device), reshard_after_forward)


def require_shardable(model: torch.nn.Module) -> None:
    """Raise `RecipeMismatch` with the first parameter that cannot be sharded."""
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise RecipeMismatch(f"the parameter {name} has no rows to shard", fix=FIX)
        if type(parameter) is not torch.nn.Parameter:
            raise RecipeMismatch(f"the parameter {name} is a {type(parameter).__name__}", fix=FIX)
        if not parameter.is_contiguous():
            raise RecipeMismatch(f"the parameter {name} is not contiguous", fix=FIX)
    for path, module in model.named_modules():
        values = held_tensors(module)
        name_outside = next((parameters[id(value)] for value in values if id(value) in parameters), None)
        if name_outside is not None:
            kind = type(module).__name__
            what = f"an attribute of the {f'{kind} {path}'.strip()} also holds the parameter {name_outside}"
            raise RecipeMismatch(what, fix=FIX)


def held_tensors(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the attributes of a module that are not registered parameters, and the items of containers among them."""
    for name, value in vars(module).items():
        if name in ("_parameters", "_modules"):
            continue
        yield value
        if isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
