"""Checks of gradients that are accumulated without communication, run on each rank: they equal those of FSDP2."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes.sharded_training import collectives, pair, sharded_by_pytorch, whole
from tests.distributed.recipes.training import DTYPES, EAGER, FEW, OPTIMIZERS, assert_close, loss_of

PARTS = 3  # backwards of a step, of which the last one reduces

Step = Callable[[Any, int], None]


def steps_of(model: Any, step_of: Step, optimizer: str = "sgd", steps: int = FEW) -> list[Any]:
    """The gradients after each of some steps, and at the end the parameters."""
    trained = OPTIMIZERS[optimizer](model.parameters())
    results: list[Any] = []
    for step in range(steps):
        step_of(model, step)
        results += [None if one.grad is None else whole(one.grad) for one in model.parameters()]
        trained.step()
        trained.zero_grad()
    return [*results, *map(whole, model.parameters())]


def reduce_at_the_end(model: Any, step: int) -> None:
    for part in range(PARTS):
        model.set_requires_gradient_sync(part == PARTS - 1)
        loss_of(model, PARTS * step + part).backward()


def equals_pytorch(dtype: str, optimizer: str) -> None:
    compiled, twin = pair(dtype=DTYPES[dtype])
    assert_equal(steps_of(compiled, reduce_at_the_end, optimizer), steps_of(twin, reduce_at_the_end, optimizer))
    assert thunder.cache_misses(compiled) == 2


def equals_pytorch_in_a_reduce_dtype(dtype: str, reduce_dtype: str) -> None:
    options = {"without": EAGER, "reduce_dtype": reduce_dtype}
    compiled = thunder.compile(Layers(getattr(torch, dtype), seed=dist.get_rank()), "fsdp", **options)
    twin, policy = Layers(getattr(torch, dtype)), MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduce_dtype))
    for layer in twin.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(twin, mp_policy=policy)
    assert_equal(steps_of(compiled, reduce_at_the_end), steps_of(twin, reduce_at_the_end))


def no_sync_equals_pytorch() -> None:
    """The context restores what was set before, also after an exception."""

    def step_of(model: Any, step: int) -> None:
        try:
            with model.no_sync():
                loss_of(model, 2 * step).backward()
                raise KeyError
        except KeyError:
            loss_of(model, 2 * step + 1).backward()

    def twins_step(model: Any, step: int) -> None:
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            loss_of(model, 2 * step + part).backward()

    compiled, twin = pair(reshard_after_forward=False)
    assert_equal(steps_of(compiled, step_of), steps_of(twin, twins_step))


def layers_are_set_alone() -> None:
    """`recurse=False` sets the parameters outside of the layers, and each layer is set by its own method."""

    def step_of(model: Any, step: int) -> None:
        model.set_requires_gradient_sync(False, recurse=False)
        loss_of(model, 3 * step).backward()
        model.layers[1].set_requires_gradient_sync(False)
        loss_of(model, 3 * step + 1).backward()
        model.set_requires_gradient_sync(True)
        loss_of(model, 3 * step + 2).backward()

    compiled, twin = pair()
    assert_equal(steps_of(compiled, step_of), steps_of(twin, step_of))


def the_setting_at_the_backward_counts() -> None:
    """The last backward reduces, although it was set after the forward."""

    def step_of(model: Any, step: int) -> None:
        model.set_requires_gradient_sync(False)
        losses = [loss_of(model, 2 * step + part) for part in range(2)]
        losses[0].backward()
        model.set_requires_gradient_sync(True)
        losses[1].backward()

    compiled, twin = pair(reshard_after_forward=False)
    assert_equal(steps_of(compiled, step_of), steps_of(twin, step_of))


class Branches(nn.Module):
    """A layer for even inputs, and a layer for odd ones; the first one is frozen at times."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        result: Tensor = self.layers[branch](x) * self.scale
        return result


def branch_pair() -> tuple[Any, Any]:
    twin = Branches()
    sharded_by_pytorch(twin, twin.layers)
    return thunder.compile(Branches(seed=dist.get_rank()), "fsdp", without=EAGER), twin


def branch_loss(model: Any, step: int, branch: int) -> Tensor:
    x = torch.arange(6, dtype=torch.float64).view(2, 3) + step + dist.get_rank()
    result: Tensor = model(x, branch).tanh().sum()
    return result


def parameters_that_the_last_backward_does_not_use_are_reduced() -> None:
    def step_of(model: Any, step: int) -> None:
        model.set_requires_gradient_sync(False)
        branch_loss(model, step, 0).backward()
        model.set_requires_gradient_sync(True)
        branch_loss(model, step, 1).backward()

    compiled, twin = branch_pair()
    assert_equal(steps_of(compiled, step_of), steps_of(twin, step_of))
    assert all(held.gradient is None for held in compiled._gradient_synchronization[0].unreduced_gradients.values())


def a_partial_backward_keeps_unreduced_gradients() -> None:
    """`torch.autograd.grad` for an input neither takes unreduced gradients nor adds to them."""

    def step_of(model: Any, step: int) -> None:
        model.set_requires_gradient_sync(False)
        branch_loss(model, step, 0).backward()
        for required in (False, True):
            model.set_requires_gradient_sync(required)
            x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
            torch.autograd.grad(model(x, 0).sum(), x)
        branch_loss(model, step + 1, 0).backward()

    def twins_step(model: Any, step: int) -> None:
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            branch_loss(model, step + part, 0).backward()

    compiled, twin = branch_pair()
    assert_equal(steps_of(compiled, step_of), steps_of(twin, twins_step))


def frozen_parameters_hold_nothing() -> None:
    def step_of(model: Any, step: int) -> None:
        model.layers[0].weight.requires_grad_(step % 2 == 0)
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            branch_loss(model, 2 * step + part, 0).backward()

    compiled, twin = branch_pair()
    assert_equal(steps_of(compiled, step_of), steps_of(twin, step_of))


def communicates_only_at_the_last_backward() -> None:
    compiled, _ = pair(reshard_after_forward=False)
    counts = []
    for part in range(PARTS):
        compiled.set_requires_gradient_sync(part == PARTS - 1)
        loss_of(compiled, part).backward()
        counts.append(len(collectives(compiled)[1]))
        is_reduced = [one.grad is not None for one in compiled.parameters() if one.requires_grad]
        assert any(is_reduced) == (part == PARTS - 1)
    assert counts == [0, 0, 3]
    gradients = [one.grad for one in compiled.parameters() if one.grad is not None]
    assert all(type(one) is DTensor for one in gradients)


def equals_pytorch_with_inductor() -> None:
    """Unreduced gradients are taken where Inductor compiles the region around them."""
    compiled, twin = thunder.compile(Layers(layers=1), "fsdp"), Layers(layers=1)
    sharded_by_pytorch(twin, twin.layers)
    gradients = []
    for model in (compiled, twin):
        reduce_at_the_end(model, 0)
        gradients.append([whole(one.grad) for one in model.parameters() if one.grad is not None])
    assert_close(*gradients, 1e-12)
    assert not compiled._gradient_synchronization[0].pending
