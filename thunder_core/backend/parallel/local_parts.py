"""The part of a parameter that a rank keeps: a DTensor parameter for the user, and a plain tensor for programs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement

from thunder_core.backend.parallel.gradients.parameter_hooks import (
    run_gradient_hooks,
    run_post_accumulate_hooks,
    share_hooks,
)
from thunder_core.backend.parallel.unreduced_gradients import OWNER, UNREDUCED
from thunder_core.foundation.errors import WrongInputs
from thunder_core.tracing.analysis.collectives import LOCAL_SHARDS

Conversion = Callable[[torch.Tensor], torch.Tensor]
Distributed = Callable[[torch.Tensor, torch.Tensor], DTensor]
LEAVES = LOCAL_SHARDS  # the attribute that maps names of sharded parameters to the tensors that programs read
PLACEMENTS_OF_PARTS = "_placements_of_parts"  # maps names of parameters that tensor parallelism divides to placements
DATA_PARALLEL_GROUP = "_data_parallel_group"  # names the group whose ranks each use a parameter for a part of the data
DIVIDED_OVER = "_divided_over"  # the name of the process group of a model with tensor parallelism


def placement_of_part(module: torch.nn.Module, name: str) -> Placement | None:
    """Return the placement of a parameter that tensor parallelism divides; None for other parameters."""
    placement: Placement | None = module.__dict__.get(PLACEMENTS_OF_PARTS, {}).get(name)
    return placement


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that a module itself has, without those of its submodules."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def distributed_parameter(
    parameter: torch.nn.Parameter,
    leaf: torch.Tensor,
    local: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
) -> torch.nn.Parameter:
    """Return the DTensor parameter for the part of a parameter that this rank keeps.

    Programs read the `leaf`, and the gradients of the leaf become gradients of the returned parameter. `local` is the
    leaf without padding rows. The returned parameter has the hooks of the parameter that it replaces.
    """
    distributed = distributor(mesh, placements)
    shard = torch.nn.Parameter(distributed(local, parameter), requires_grad=parameter.requires_grad)
    if leaf.is_floating_point() or leaf.is_complex():
        hook = make_hand_over_hook(weakref.ref(shard), distributed)
        setattr(leaf, OWNER, weakref.ref(shard))
        leaf.requires_grad_().register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    leaf.requires_grad_(parameter.requires_grad)
    share_hooks(parameter, shard)
    return shard


def distributor(mesh: DeviceMesh, placements: Sequence[Placement]) -> Distributed:
    """Return a function that makes a DTensor of a local tensor, with the full shape of another DTensor or tensor.

    A local tensor that is offloaded to the CPU stays there, as under `fully_shard`; `from_local` would copy it.
    """

    def distribute(tensor: torch.Tensor, like: torch.Tensor) -> DTensor:
        size, stride = like.size(), torch.empty(like.shape, device="meta").stride()
        if tensor.device.type not in (mesh.device_type, "meta"):
            spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(size, stride, tensor.dtype))
            return DTensor(tensor.detach(), spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=size, stride=stride)

    return distribute


def make_hand_over_hook(
    parameter_of: Callable[[], torch.nn.Parameter | None], distributed: Distributed
) -> Callable[[torch.Tensor], None]:
    """Return the hook that moves the gradient of a leaf to the `.grad` of the DTensor parameter."""

    def hand_over(leaf: torch.Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        parameter = parameter_of()
        if (unreduced_gradient := getattr(leaf, UNREDUCED, None)) is not None:
            unreduced_gradient.synchronization.queue()
        if parameter is not None and gradient is not None and parameter.requires_grad:
            add_gradient(parameter, gradient, distributed)

    return hand_over


def add_gradient(parameter: torch.nn.Parameter, gradient: torch.Tensor, distributed: Distributed) -> None:
    """Add the gradient of a leaf, which may have padding rows, to the `.grad` of the DTensor parameter.

    The parameter's gradient hooks run before the addition, and its post-accumulate hooks run after it.
    """
    rows = gradient.narrow(0, 0, local_of(parameter).shape[0])
    if parameter._backward_hooks:
        rows = local_of(run_gradient_hooks(parameter, distributed(rows, parameter)))
    if parameter.grad is None:
        parameter.grad = distributed(rows, parameter)
    else:
        local_of(parameter.grad).add_(rows)
    run_post_accumulate_hooks(parameter)


def local_of(tensor: Any) -> torch.Tensor:
    """Return the local shard of a DTensor, detached from autograd."""
    local: torch.Tensor = tensor._local_tensor
    return local


def convert_rest(module: object, fn: Conversion, recurse: bool = True) -> Any:
    """Convert the buffers and the inner modules of a module, and leave its parameters unchanged.

    Training scripts move each module to its device, which changes nothing if the parameters are already there. A
    conversion that would change a parameter is refused, because the program would not read the converted parameter.
    """
    leaves = [leaf.detach() for leaf in module.__dict__[LEAVES].values()]
    if not all(fn(leaf) is leaf for leaf in leaves):
        refuse_conversion(module)
    return apply_to_rest(module, fn, recurse)


def apply_to_rest(module: Any, fn: Conversion, recurse: bool) -> Any:
    """Apply a function to the buffers and the inner modules of a module."""
    registered = dict(module._parameters)
    module._parameters.clear()
    torch.nn.Module._apply(module, fn, recurse)  # type: ignore[no-untyped-call]
    module._parameters.update(registered)
    return module


def refuse_conversion(module: object) -> NoReturn:
    """Raise the error for a conversion of sharded parameters, such as `double` or `to` another device."""
    raise WrongInputs(
        f"the parameters of this {type(module).__name__} are sharded over ranks and cannot be converted",
        fix="change the dtype or device of the model before you compile it",
    )


def refuse_copy(self: object, *args: Any) -> Any:
    """Refuse to copy or pickle a module, because programs of the copy would not read the parameters of the copy."""
    raise WrongInputs(
        f"the parameters of this {type(self).__name__} are sharded over ranks and cannot be copied or pickled",
        fix="copy the model before you compile it, or save its state dict with `torch.distributed.checkpoint`",
    )


def refuse_parameter(self: Any, name: str, param: Any) -> Any:
    """Refuse to replace a sharded parameter; register any other parameter."""
    if name in self.__dict__[LEAVES]:
        raise WrongInputs(
            f"the parameter {name} of this {type(self).__name__} is sharded over ranks and cannot be replaced",
            fix="copy values into the parameter, or replace it before you compile the model",
        )
    torch.nn.Module.register_parameter(self, name, param)


# Methods that a module with sharded parameters gets: they refuse to convert, copy or replace the parameters.
REFUSING_METHODS: Mapping[str, Any] = {
    "_apply": convert_rest,
    "register_parameter": refuse_parameter,
    **dict.fromkeys(("__deepcopy__", "__copy__", "__reduce_ex__"), refuse_copy),
}
