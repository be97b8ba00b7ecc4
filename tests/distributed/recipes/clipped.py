"""Checks that gradients of divided and of full parameters are clipped together, as docs/distributed.md shows."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.distributed.meshes import meshes
from tests.distributed.models import tokens
from tests.distributed.recipes import tensor_parallel
from tests.distributed.recipes.sharded_training import whole
from tests.distributed.recipes.training import assert_close

MAX_NORM = 0.01


def clip_on_meshes(parameters: list[Any], max_norm: float) -> Tensor:
    """Clip the gradients of parameters on different meshes, and return their norm."""
    groups: dict[Any, list[Any]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            groups.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([parameter.grad for parameter in group]) for group in groups.values()]
    full_norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total: Tensor = torch.linalg.vector_norm(torch.stack(full_norms))
    for group in groups.values():
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


def clips_as_one_process(
    model: Any, loss: Callable[[Any, int], Tensor], expected_losses: list[Callable[..., Any]]
) -> None:
    loss(model, 0).backward()
    one_process = tensor_parallel.Layers()
    for expected_loss in expected_losses:
        (expected_loss(one_process) / len(expected_losses)).backward()
    with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor|different meshes|DeviceMesh"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    expected = torch.nn.utils.clip_grad_norm_(one_process.parameters(), MAX_NORM)
    assert_close([clip_on_meshes([*model.parameters()], MAX_NORM)], [expected], 1e-12)
    gradients = ([whole(parameter.grad) for parameter in each.parameters()] for each in (model, one_process))
    assert_close(*gradients, 1e-12)


def parts_are_clipped() -> None:
    loss = tensor_parallel.loss_of
    clips_as_one_process(tensor_parallel.compiled_layers(), loss, [lambda model: loss(model, 0)])


def shards_of_parts_are_clipped() -> None:
    def loss_of_replica(replica: int) -> Callable[..., Any]:
        return lambda model: model(tokens(0, replica)).float().pow(2).mean()

    clips_as_one_process(meshes.both_recipes(), meshes.data_loss, [loss_of_replica(0), loss_of_replica(1)])
