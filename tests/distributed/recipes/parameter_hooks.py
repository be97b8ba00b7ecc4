"""Checks of the hooks of parameters that ranks divide, run on each rank: they run as in PyTorch's wrappers."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.tensor import DTensor, distribute_tensor

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes import tensor_parallel
from tests.distributed.recipes.sharded_training import pair, whole
from tests.distributed.recipes.training import EAGER, FEW, assert_close, loss_of, replicas
from tests.distributed.recipes.training import steps_of as replicated_steps_of
from thunder_core.foundation.errors import OperationFailed

RATE = 0.1
Loss = Callable[[Any, int], torch.Tensor]


def trained_parameters(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train_in_the_backward(model: Any, loss: Loss, accumulate: int = 1) -> list[torch.Tensor]:
    """The number of updates and the parameters of some steps whose optimizer is a hook of each parameter."""
    updates: list[Any] = []

    def update(parameter: torch.nn.Parameter) -> None:
        assert not torch.is_grad_enabled()
        assert parameter.grad is not None
        updates.append(parameter)
        parameter.sub_(parameter.grad, alpha=RATE)
        parameter.grad = None

    for parameter in trained_parameters(model):
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(FEW):
        for part in range(accumulate):
            if accumulate > 1:
                model.set_requires_gradient_sync(part == accumulate - 1)
            loss(model, accumulate * step + part).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    return [torch.tensor(len(updates)), *map(whole, model.parameters())]


def shards_are_trained_in_the_backward(accumulate: int) -> None:
    compiled, twin = pair()
    expected = train_in_the_backward(twin, loss_of, accumulate)
    assert_equal(train_in_the_backward(compiled, loss_of, accumulate), expected)
    assert expected[0] > 0


def parts_are_trained_in_the_backward() -> None:
    loss = tensor_parallel.loss_of
    twin = tensor_parallel.by_pytorch(tensor_parallel.Layers(), tensor_parallel.PLAN)
    expected = train_in_the_backward(twin, loss)
    assert_close(train_in_the_backward(tensor_parallel.compiled_layers(), loss), expected, 1e-12)
    assert expected[0] == FEW * len(trained_parameters(twin))


def scale_gradients(parameters: list[Any], seen: list[Any]) -> None:
    """Register hooks that return scaled gradients, and hooks that only see them."""
    for number, parameter in enumerate(parameters):
        parameter.register_hook(lambda gradient, scale=number + 2.0: gradient * scale)
        parameter.register_hook(seen.append)


def hooks_scale_gradients(recipe: str) -> None:
    """Hooks of parameters get the gradients that `.grad` would get, as DTensors, and replace them."""
    if recipe == "fsdp":
        (compiled, twin), loss = pair(), loss_of
    else:
        twin = tensor_parallel.by_pytorch(tensor_parallel.Layers(), tensor_parallel.PLAN)
        compiled, loss = tensor_parallel.compiled_layers(), tensor_parallel.loss_of
    seen: list[Any] = []
    scale_gradients(trained_parameters(compiled), seen)
    for _ in range(2):
        for model in (compiled, twin):
            loss(model, 0).backward()
    actual, expected = (
        [None if parameter.grad is None else whole(parameter.grad) for parameter in trained_parameters(model)]
        for model in (compiled, twin)
    )
    scaled = [None if gradient is None else gradient * (n + 2) for n, gradient in enumerate(expected)]
    assert [gradient is None for gradient in actual] == [gradient is None for gradient in expected]
    assert_close([one for one in actual if one is not None], [one for one in scaled if one is not None], 1e-12)
    with_gradient = [parameter for parameter in trained_parameters(compiled) if parameter.grad is not None]
    assert len(seen) == 2 * len(with_gradient)
    assert sum(isinstance(gradient, DTensor) for gradient in seen) == 2 * sum(
        isinstance(parameter, DTensor) for parameter in with_gradient
    )


def hooks_from_before_compilation_run() -> None:
    """Compilation replaces parameters, and keeps their hooks, which can still be removed."""
    model = Layers(seed=dist.get_rank())
    calls: list[Any] = []
    used = {*model.parameters()} - {*model.frozen.parameters(), *model.unused.parameters()}
    handles: list[Any] = []
    for parameter in used:
        handles.append(parameter.register_post_accumulate_grad_hook(calls.append))
        handles.append(parameter.register_hook(calls.append))
    compiled: Any = thunder.compile(model, "fsdp", without=EAGER)
    loss_of(compiled, 0).backward()
    assert len(calls) == 2 * len(used)
    assert all(isinstance(argument, DTensor) for argument in calls)
    for handle in handles:
        handle.remove()
    loss_of(compiled, 0).backward()
    assert len(calls) == 2 * len(used)


def hooks_from_before_the_allocation_run() -> None:
    with torch.device("meta"):
        model = Layers()
    calls: list[Any] = []
    compiled: Any = thunder.compile(model, "fsdp", without=EAGER)
    compiled.layers[0].up.weight.register_post_accumulate_grad_hook(calls.append)
    compiled.to_empty(device="cpu")
    compiled.load_state_dict(pair()[0].state_dict())
    loss_of(compiled, 0).backward()
    assert len(calls) == 1
    assert calls[0] is compiled.layers[0].up.weight


def gradients_that_a_hook_spoils_are_refused() -> None:
    for hook, what in (
        (lambda gradient: gradient.full_tensor(), "of class Tensor"),
        (lambda gradient: distribute_tensor(torch.zeros(1, 2), gradient.device_mesh), r"shape \(1, 2\)"),
    ):
        compiled: Any = thunder.compile(torch.nn.Linear(2, 2), "fsdp", without=EAGER)
        compiled.weight.register_hook(hook)
        with pytest.raises(OperationFailed, match=what):
            compiled(torch.ones(1, 2)).sum().backward()


def gradients_of_ddp_that_a_hook_spoils_are_refused() -> None:
    for hook, what in (
        (lambda gradient: gradient[:1].double(), "float64"),
        (lambda gradient: 3, "of class int"),
    ):
        compiled: Any = thunder.compile(torch.nn.Linear(2, 2), "ddp", without=EAGER)
        compiled.bias.register_hook(hook)
        with pytest.raises(OperationFailed, match=what):
            compiled(torch.ones(1, 2)).sum().backward()


def placements_of_gradients_are_restored() -> None:
    compiled: Any = thunder.compile(torch.nn.Linear(2, 3), "fsdp", without=EAGER)
    compiled.weight.register_hook(lambda gradient: distribute_tensor(gradient.full_tensor(), gradient.device_mesh))
    for _ in range(2):
        compiled(torch.ones(1, 2)).sum().backward()
    assert compiled.weight.grad.placements == compiled.weight.placements
    assert_equal(whole(compiled.weight.grad), torch.full((3, 2), 2.0))


def hooks_run_before_gradients_are_averaged(accumulate: int) -> None:
    """As in DistributedDataParallel, hooks of parameters get the gradient of this rank, also in `no_sync`."""
    compiled, twin = replicas()
    seen: dict[Any, list[Any]] = {compiled: [], twin: []}
    for model in (compiled, twin):
        for number, parameter in enumerate(trained_parameters(model)):
            parameter.register_hook(seen[model].append)
            parameter.register_hook(lambda gradient, scale=number + 2.0: gradient * scale)
            parameter.register_hook(lambda gradient: gradient.clamp(max=0.01)).remove()
            handle = parameter.register_hook(lambda gradient: gradient.clamp(max=0.01))
    assert_equal(*(replicated_steps_of(model, accumulate=accumulate) for model in (compiled, twin)))
    assert len(seen[compiled]) == len(seen[twin]) > 0
    handle.remove()
    register_multi_grad_hook(tuple(compiled.parameters())[:2], seen[compiled].append)
    before = len(seen[compiled])
    loss_of(compiled, 0).backward()
    groups = [group for group in seen[compiled][before:] if not isinstance(group, torch.Tensor)]
    assert [len(group) for group in groups] == [2]


def hooks_of_several_parameters_are_refused() -> None:
    for model in (pair()[0], tensor_parallel.compiled_layers()):
        register_multi_grad_hook(tuple(trained_parameters(model)), lambda gradients: None)
        with pytest.raises(OperationFailed, match="register_multi_grad_hook"):
            loss_of(model, 0).backward()
