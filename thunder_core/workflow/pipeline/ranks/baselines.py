"""PyTorch's own functions for several ranks, the baselines of the parallel recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from thunder_core.backend.parallel.offload import is_offloaded, parse_offload_policy
from thunder_core.backend.parallel.tensor_parallel import COLWISE, ROWWISE, modules_of
from thunder_core.passes.transforms.ddp import AverageGradients
from thunder_core.passes.transforms.fsdp import ShardParameters
from thunder_core.passes.transforms.tensor_parallel import ParallelizeLinears
from thunder_core.workflow.pipeline.ranks.mesh import RanksMesh
from thunder_core.workflow.validation.model_copies import copy_sharing_parameters


@dataclass(frozen=True)
class Baseline:
    """PyTorch's equivalent of the parallel transforms of a recipe, on a mesh."""

    mesh: RanksMesh
    model: torch.nn.Module

    @property
    def name(self) -> str:
        """The names of PyTorch's functions."""
        return " + ".join(name for kind, (name, _) in WRAPPERS.items() if kind in self._kinds)

    @property
    def _kinds(self) -> set[type]:
        """The kinds of transforms that need a wrapper: `fully_shard` also replicates, so it replaces DDP."""
        kinds: set[type] = {type(transform) for transform in self.mesh.transforms}
        return kinds - {AverageGradients} if ShardParameters in kinds else kinds

    def wrap(self) -> torch.nn.Module:
        """Apply PyTorch's functions to a copy of the model, with the options of the transforms."""
        copied = copy_sharing_parameters(self.model)
        for kind in reversed(WRAPPERS):
            transform = next((each for each in self.mesh.transforms if type(each) is kind), None)
            if transform is not None and kind in self._kinds:
                copied = WRAPPERS[kind][1](transform, copied, self.mesh)
        return copied


def replicate(transform: AverageGradients, model: torch.nn.Module, mesh: RanksMesh) -> torch.nn.Module:
    """Wrap a model in `DistributedDataParallel`."""
    axis, device = mesh.along(AverageGradients), mesh.device
    _pre_dp_module_transform(model)  # `DistributedDataParallel` needs this for DTensor parameters
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=axis.get_group(),
        bucket_cap_mb=transform.bucket_cap_mb,
        broadcast_buffers=transform.broadcast_buffers,
    )


def shard(transform: ShardParameters, model: torch.nn.Module, mesh: RanksMesh) -> torch.nn.Module:
    """Apply `fully_shard` to each layer of a model, and to the model."""
    axes = mesh.along(AverageGradients, ShardParameters)
    options: dict[str, Any] = {"mesh": axes, "reshard_after_forward": transform.reshard_after_forward}
    if (offload := parse_offload_policy(transform.offload_policy)) is not None:
        pin_memory = offload.pin_memory and is_offloaded(mesh.device)  # PyTorch pins no memory for the CPU
        options["offload_policy"] = CPUOffloadPolicy(pin_memory)
    for path, module in list(model.named_modules()):
        are_indices = [part.isdigit() for part in path.split(".")]
        if are_indices[-1] and not any(are_indices[:-1]):  # an outermost list of layers
            fully_shard(module, **options)
    wrapped: Any = fully_shard(model, **options)
    return wrapped  # type: ignore[no-any-return]


def divide(transform: ParallelizeLinears, model: torch.nn.Module, mesh: RanksMesh) -> torch.nn.Module:
    """Apply `parallelize_module` with the colwise and rowwise layers of the plan."""
    axis: DeviceMesh = mesh.along(ParallelizeLinears)
    styles = {
        path: PYTORCH_STYLES.get(style) for path, _, style in modules_of(model, transform.plan_for(model, axis.size()))
    }
    plan = {path: style() for path, style in styles.items() if style is not None}
    parallelized: torch.nn.Module = parallelize_module(model, axis, plan)
    return parallelized


PYTORCH_STYLES: Mapping[str, Callable[[], ParallelStyle]] = {COLWISE: ColwiseParallel, ROWWISE: RowwiseParallel}
WRAPPERS: dict[type, tuple[str, Callable[..., torch.nn.Module]]] = {  # the last is applied first
    AverageGradients: ("DDP", replicate),
    ShardParameters: ("FSDP2", shard),
    ParallelizeLinears: ("parallelize_module", divide),
}
