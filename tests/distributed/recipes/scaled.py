"""Checks of a GradScaler, run on each rank: a step that overflows on one rank is left out on all ranks."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes.sharded_training import sharded_by_pytorch, whole
from tests.distributed.recipes.training import EAGER, loss_of

STEPS = 4


def steps_of(model: Any) -> list[torch.Tensor]:
    """The scales and the parameters of some steps, of which the second one overflows on the last rank."""
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    results: list[torch.Tensor] = []
    for step in range(STEPS):
        loss = loss_of(model, step)
        overflows = step == 1 and dist.get_rank() == dist.get_world_size() - 1
        scaler.scale(loss * float("inf") if overflows else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        results += [torch.tensor(scaler.get_scale()), *map(whole, model.parameters())]
    return results


def overflow_leaves_the_step_out(recipe: str) -> None:
    compiled, twin = thunder.compile(Layers(seed=dist.get_rank()), recipe, without=EAGER), Layers()
    wrapped: Any = (
        DistributedDataParallel(twin, find_unused_parameters=True)
        if recipe == "ddp"
        else sharded_by_pytorch(twin, twin.layers)
    )
    results = steps_of(compiled)
    assert_equal(results, steps_of(wrapped))
    scales = [one.item() for one in results if one.dim() == 0]
    assert scales == [8.0, 4.0, 4.0, 8.0]
