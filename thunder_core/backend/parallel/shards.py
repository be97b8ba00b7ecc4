"""Shards of a model: each rank keeps some rows of each parameter, and gathers the full one where it is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from thunder_core.backend.parallel.groups import mesh_of
from thunder_core.backend.parallel.operators import OPERATORS, rows_of_rank, shard_rows
from thunder_core.backend.parallel.replicas import LEAVES, REPLICATES, broadcast_values
from thunder_core.foundation.errors import RecipeMismatch, WrongInputs
from thunder_core.tracing.capture.torch_facts.modes import is_recording

FIX = "use the recipe `ddp`, which keeps whole parameters, or change the module"


@dataclass(frozen=True)
class Sharding:
    """The process group and its mesh, and whether a backward gathers parameters again."""

    group: Any
    mesh: DeviceMesh
    reshard_after_forward: bool

    def shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the parameters of a model by shards, in place; all ranks get the values of the first rank."""
        require_shardable(model)
        broadcast_values(list(model.buffers()), self.group)
        shards: dict[int, torch.nn.Parameter] = {}
        leaves: dict[int, torch.Tensor] = {}
        for module in list(model.modules()):
            own = {name: one for name, one in module._parameters.items() if one is not None}
            for name, parameter in own.items():
                if id(parameter) not in shards:
                    shards[id(parameter)], leaves[id(parameter)] = self._shard_of(parameter)
                module._parameters[name] = shards[id(parameter)]
            if own:
                module.__dict__[LEAVES] = {name: leaves[id(parameter)] for name, parameter in own.items()}
                module.__class__ = self._class_of(type(module), {name: one.shape[0] for name, one in own.items()})
        return model

    def _shard_of(self, parameter: torch.nn.Parameter) -> tuple[torch.nn.Parameter, torch.Tensor]:
        """The rows of this rank as a parameter that is a DTensor, as under `fully_shard`, and as a program reads them.

        A program reads as many rows on each rank, of which the last may be zeros, so all ranks have the same program.
        """
        broadcast_values([parameter], self.group)
        size = self.group.size()
        start, rows = rows_of_rank(parameter.shape[0], self.group.rank(), size)
        leaf = parameter.detach().new_zeros((shard_rows(parameter.shape[0], size), *parameter.shape[1:]))
        local = leaf.narrow(0, 0, rows)
        local.copy_(parameter.detach().narrow(0, start, rows))
        shard = torch.nn.Parameter(self._distributed(local, parameter), requires_grad=parameter.requires_grad)
        if leaf.is_floating_point() or leaf.is_complex():
            hook = self._handing_over(weakref.ref(shard))
            leaf.requires_grad_().register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        leaf.requires_grad_(parameter.requires_grad)
        return shard, leaf

    def _distributed(self, local: torch.Tensor, like: torch.Tensor) -> DTensor:
        size, stride = like.size(), torch.empty(like.shape, device="meta").stride()
        placements = [*(Replicate() for _ in range(self.mesh.ndim - 1)), Shard(0)]
        return DTensor.from_local(local, self.mesh, placements, run_check=False, shape=size, stride=stride)

    def _handing_over(self, parameter_of: Callable[[], torch.nn.Parameter | None]) -> Callable[[torch.Tensor], None]:
        """The hook that gives the gradient of the rows of this rank to the parameter that they belong to."""

        def hand_over(leaf: torch.Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            parameter = parameter_of()
            if parameter is None or gradient is None or not parameter.requires_grad:
                return
            gradient = gradient.narrow(0, 0, local_of(parameter).shape[0])
            if parameter.grad is None:
                parameter.grad = self._distributed(gradient, parameter)
            else:
                local_of(parameter.grad).add_(gradient)

        return hand_over

    def _class_of(self, kind: Any, rows: dict[str, int]) -> type[torch.nn.Module]:
        """The subclass of a module's class that gathers each parameter where it is read."""
        names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        names |= {"_apply": refuse_conversion, "register_parameter": refuse_parameter}
        names |= dict.fromkeys(("__deepcopy__", "__copy__", "__reduce_ex__"), refuse_copy)
        group_name, reshard = self.group.group_name, self.reshard_after_forward
        names |= {name: gathering(name, count, group_name, reshard) for name, count in rows.items()}
        made: type[torch.nn.Module] = type(kind)(kind.__name__, (kind,), names)
        return made


def gathering(name: str, rows: int, group_name: str, reshard_after_forward: bool) -> property:
    """The property that gathers a parameter of a module."""

    def gather(self: Any) -> torch.Tensor:
        if not is_recording():  # outside of a program it is the parameter itself, which can be written to
            parameter: torch.Tensor = self._parameters[name]
            return parameter
        local = self._local_shards[name]
        result: torch.Tensor = OPERATORS.gather_parameter(local, rows, group_name, reshard_after_forward)
        return result

    return property(gather)


def follow_requires_grad(model: torch.nn.Module) -> Callable[[], None]:
    """The function that gives the rows of each parameter its `requires_grad`, which may be set at any time."""
    holders = [module for module in model.modules() if LEAVES in module.__dict__]
    pairs = [(module._parameters[name], leaf) for module in holders for name, leaf in module.__dict__[LEAVES].items()]

    def follow() -> None:
        for shard, leaf in pairs:
            if shard is not None and leaf.requires_grad != shard.requires_grad:
                leaf.requires_grad_(shard.requires_grad)

    return follow


def refuse_conversion(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse `to`, `double` and the like, after which the program would read other tensors than the parameters."""
    raise WrongInputs(
        f"the parameters of this {type(self).__name__} are sharded over ranks and cannot be converted",
        fix="convert the model before you compile it",
    )


def refuse_copy(self: Any, *args: Any) -> Any:
    """Refuse a copy or a pickle, which would have other tensors in its programs than in its parameters."""
    raise WrongInputs(
        f"the parameters of this {type(self).__name__} are sharded over ranks and cannot be copied or pickled",
        fix="copy the model before you compile it, or save its state dict with `torch.distributed.checkpoint`",
    )


def refuse_parameter(self: Any, name: str, param: Any) -> Any:
    """Refuse another parameter in the place of a shard."""
    if name in self.__dict__[LEAVES]:
        raise WrongInputs(
            f"the parameter {name} of this {type(self).__name__} is sharded over ranks and cannot be replaced",
            fix="copy values into the parameter, or replace it before you compile the model",
        )
    torch.nn.Module.register_parameter(self, name, param)


def local_of(tensor: Any) -> torch.Tensor:
    """The rows of this rank of a DTensor, without a derivative."""
    local: torch.Tensor = tensor._local_tensor
    return local


def sharding_in(group: Any, model: torch.nn.Module, *, reshard_after_forward: bool) -> Sharding:
    """The sharding of a model over the ranks of a process group; a replica's mesh has an axis of replicas as well."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return Sharding(group, mesh_of(group, model.__dict__.get(REPLICATES), device), reshard_after_forward)


def require_shardable(model: torch.nn.Module) -> None:
    """Raise `RecipeMismatch` for a model with parameters that cannot be sharded, with the name of the first one."""
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise RecipeMismatch(f"the parameter {name} has no rows to shard", fix=FIX)
        if type(parameter) is not torch.nn.Parameter:
            raise RecipeMismatch(f"the parameter {name} is a {type(parameter).__name__}", fix=FIX)
        if not parameter.is_contiguous():
            raise RecipeMismatch(f"the parameter {name} is not contiguous", fix=FIX)
    for path, module in model.named_modules():
        held = next((parameters[id(one)] for one in held_tensors(module) if id(one) in parameters), None)
        if held is not None:
            kind = type(module).__name__
            what = f"the {kind} {path!r} holds the parameter {held} also outside of its registered parameters"
            raise RecipeMismatch(what, fix=FIX)


def held_tensors(module: torch.nn.Module) -> Iterator[Any]:
    """The attributes of a module that are no registered parameters, and the items of containers among them."""
    for name, value in vars(module).items():
        if name in ("_parameters", "_modules"):
            continue
        yield value
        if isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
