"""Functions that a backward pass of the program calls read the `.grad` that the pass has accumulated so far, and have
their side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import thunder_core as thunder

Step = Callable[[Tensor], Any]


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def backward_hook_of_a_module(model: nn.Sequential) -> Step:
    """The hook of a layer reads the gradient of the layer's weight."""
    norms: list[Tensor] = []
    for layer in (model[0], model[2]):
        layer.register_full_backward_hook(lambda layer, *_: norms.append(layer.weight.grad.norm()))

    def step(x: Tensor) -> Any:
        model(x.requires_grad_()).sum().backward()
        return norms[-2:]

    return step


def hook_of_a_hidden_tensor(model: nn.Sequential) -> Step:
    """The hook reads the gradients of the layers after the tensor, and of those before it."""

    def step(x: Tensor) -> Any:
        found: list[Any] = []
        hidden = model[0](x)
        hidden.register_hook(lambda _: found.append((model[2].bias.grad.clone(), model[0].bias.grad is None)))
        model[2](model[1](hidden)).sum().backward()
        return found

    return step


def optimizer_in_the_middle(model: nn.Sequential) -> Step:
    """The hook steps the layers after the tensor, whose gradients are complete."""
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def update(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def step(x: Tensor) -> Any:
        hidden = model[0](x)
        hidden.register_hook(update)
        model[2](model[1](hidden)).sum().backward()
        return model[2].bias.detach().clone(), model[2].bias.grad is None

    return step


def hooks_of_all_parameters(model: nn.Sequential) -> Step:
    """The hooks before and after accumulation are called in the order in which gradients are computed."""
    calls: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: calls.append(f"before {name}"))
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(f"after {name}"))

    def step(x: Tensor) -> Any:
        model(x).sum().backward()
        return "; ".join(calls)

    return step


def hook_that_changes_a_gradient(model: nn.Sequential) -> Step:
    """The sum's gradient flows on after the hook has changed the `.grad` that was accumulated of it."""
    bias = model[2].bias

    def multiply(_: Tensor) -> None:
        bias.grad.mul_(10)

    bias.register_post_accumulate_grad_hook(multiply)

    def step(x: Tensor) -> Any:
        hidden = model[1](model[0](x))[0, :2]
        (hidden + bias).sum().backward()
        return bias.grad.clone(), model[0].weight.grad.clone()

    return step


def hook_registered_by_a_hook(model: nn.Sequential) -> Step:
    """The side effects of a hook that another hook registers during the pass happen at each call."""
    calls: list[Any] = []

    def step(x: Tensor) -> Any:
        hidden = model[0](x)
        output = model[2](model[1](hidden))

        def register(_: Tensor) -> None:
            calls.append("output")
            hidden.register_hook(lambda gradient: calls.append(gradient.sum()))

        output.register_hook(register)
        output.sum().backward()
        return list(calls)

    return step


PROGRAMS = (
    backward_hook_of_a_module,
    hook_registered_by_a_hook,
    hook_of_a_hidden_tensor,
    optimizer_in_the_middle,
    hooks_of_all_parameters,
    hook_that_changes_a_gradient,
)


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
@pytest.mark.filterwarnings("error::thunder_core.foundation.errors.RecompileWarning")
def test_functions_called_by_a_backward_read_gradients_as_in_eager(build: Callable[[nn.Sequential], Step]) -> None:
    results = []
    for compile_step in (lambda step: step, lambda step: thunder.jit(step, executors=("torch",))):
        model = two_layers()
        step = compile_step(build(model))
        found = []
        for _ in range(2):
            found += tree_leaves(step(torch.arange(6.0).reshape(2, 3)))
            model.zero_grad()
        results.append([value.tolist() if isinstance(value, Tensor) else value for value in found])
    assert results[0] == results[1]
