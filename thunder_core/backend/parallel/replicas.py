"""Replicas of a model, one on each rank, with the same initial values and averaged gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.mesh_axes import group_name_in_programs
from thunder_core.backend.parallel.operators import OPERATORS
from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.tracing.extension.subclass import subclass_of

SYNCHRONIZES = "require_backward_grad_sync"  # the attribute has the same name in DistributedDataParallel
REPLICATES = "_replicate_group"  # the attribute with the name of the process group of a model's replicas


def replica_of(model: torch.nn.Module, group: object, *, broadcast_buffers: bool, has_values: bool) -> torch.nn.Module:
    """Return a replica of the model. Its `forward` calls `synchronize`, so that the gradients are averaged.

    If `has_values` is set, parameters and buffers get the values of rank 0. The replica shares the state of the model.
    Its class is a subclass of the model's class with the method `no_sync`.
    """
    if "forward" in model.__dict__:
        raise RecipeMismatch(
            f"the `forward` of this {type(model).__name__} is set on the object instead of its class, so the recipe "
            "ddp cannot average gradients",
            fix="define `forward` in a subclass of the module, or compile the module without `ddp` and wrap it in "
            "torch.nn.parallel.DistributedDataParallel",
        )
    if has_values:
        broadcast_values([*model.parameters(), *model.buffers()], group)
    kind: Any = type(model)
    replica: Any = object.__new__(replica_class(kind, group_name_in_programs(group), broadcast_buffers))
    object.__setattr__(replica, "__dict__", model.__dict__)
    replica.__dict__[SYNCHRONIZES] = True
    replica.__dict__[REPLICATES] = group_name_in_programs(group)
    return replica  # type: ignore[no-any-return]


def broadcast_values(tensors: list[torch.Tensor], group: Any) -> None:
    """Broadcast tensors in place from the first rank of a group. Gloo lacks 8-bit floats, so their bytes are sent."""
    source = dist.get_global_rank(group, 0)
    for tensor in tensors:
        is_narrow = tensor.is_floating_point() and tensor.itemsize == 1
        dist.broadcast(tensor.detach().view(torch.uint8) if is_narrow else tensor.detach(), source, group)


@contextmanager
def no_sync(self: object) -> Iterator[None]:
    """Disable the averaging of gradients for calls inside the block, as in DistributedDataParallel."""
    before = self.__dict__[SYNCHRONIZES]
    self.__dict__[SYNCHRONIZES] = False
    try:
        yield
    finally:
        self.__dict__[SYNCHRONIZES] = before


def replica_class(kind: Any, group_name: str, broadcast_buffers: bool) -> type[torch.nn.Module]:
    """Return a subclass of a model's class whose `forward` calls `synchronize`, so that gradients are averaged."""

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.require_backward_grad_sync:
            if broadcast_buffers:
                broadcast_buffers_of(self, group_name)
            OPERATORS.synchronize(group_name)
        return kind.forward(self, *args, **kwargs)

    subclass: type[torch.nn.Module] = subclass_of(kind, {"forward": forward, "no_sync": no_sync})
    return subclass


def broadcast_buffers_of(module: Any, group_name: str) -> None:
    """Broadcast the buffers of a module from the first rank, with one broadcast for each dtype and device."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for buffer in module.buffers():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    for buffers in kinds.values():
        flat = buffers[0] if len(buffers) == 1 else torch.cat([buffer.reshape(-1) for buffer in buffers])
        flat = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.broadcast(flat, 0, group_name))
        parts = [flat] if len(buffers) == 1 else flat.split([buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))
