"""Training by recipes on one device for each rank, run on each rank of a group with a backend such as NCCL."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers, tokens
from tests.distributed.recipes.sharded_training import whole
from tests.distributed.recipes.training import EAGER

STEPS = 4


def steps_of(model: Any, device: torch.device) -> list[Any]:
    """The losses, the gradients and at the end the parameters of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    results: list[Any] = []
    for step in range(STEPS):
        loss = model(tokens(step, dist.get_rank()).to(device)).pow(2).mean()
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results += [loss.detach(), *map(whole, gradients)]
        optimizer.step()
        optimizer.zero_grad()
    return [value.cpu() for value in (*results, *map(whole, model.parameters()))]


def replicated(model: Layers) -> Any:
    return DistributedDataParallel(model, find_unused_parameters=True)


def sharded(model: Layers) -> Any:
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


WRAPPERS = {"ddp": replicated, "fsdp": sharded}


def train(rank: int, size: int, backend: str, device_type: str, store: str) -> None:
    """Train with each recipe and with PyTorch's wrapper, and compare."""
    torch.set_num_threads(1)
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device(device_type)
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    for recipe, wrap in WRAPPERS.items():
        model = Layers(torch.float64).to(device)
        twin = wrap(copy.deepcopy(model))
        compiled = thunder.compile(model, recipe, without=EAGER)
        assert_equal(steps_of(compiled, device), steps_of(twin, device))
        assert thunder.cache_misses(compiled) == 1
    dist.destroy_process_group()
