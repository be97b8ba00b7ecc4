"""Modules inside DistributedDataParallel whose backward is a chain of nodes, and ways to compute their gradients."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.distributed.models import Layers, Normalized, tokens
from thunder_core.passes.autodiff.chained_nodes import Chain

SMALL = 0.00005  # MiB of a bucket: nearly each parameter has a bucket of its own


def wrap(model: nn.Module, **options: Any) -> Any:
    return DistributedDataParallel(model, bucket_cap_mb=SMALL, find_unused_parameters=True, **options)


def nodes_of(result: Tensor) -> list[Any]:
    """The nodes of the chain from a result, in the order of the backward."""
    node: Any = result.grad_fn
    while node is not None and not hasattr(node, "chain"):
        node = node.next_functions[0][0]
    found = []
    while hasattr(node, "chain"):
        found.append(node)
        node = node.next_functions[0][0]
    return found


def chains_of(result: Tensor) -> Chain:
    chain: Chain = nodes_of(result)[0].chain
    return chain


class Net(nn.Module):
    """Layers with an input that requires a gradient, a parameter that is added, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5, dtype=torch.float64) for _ in range(4))
        self.shift = nn.Parameter(torch.ones(3, 5, dtype=torch.float64))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x))) + x
        return x + self.shift


class Checkpointed(nn.Module):
    """Layers with dropout whose activations the backward computes again, with the same random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net.layers:
            x = checkpoint(self._layer, layer, x, use_reentrant=False)
        return x + self.net.shift

    def _layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = self.net.dropout(torch.tanh(layer(x))) + x
        return result


def example() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def backward_twice(model: Any, loss: Callable[[Any], Tensor]) -> None:
    value = loss(model)
    value.backward(retain_graph=True)
    value.backward()


def accumulate(model: Any, loss: Callable[[Any], Tensor]) -> None:
    with model.no_sync():
        loss(model).backward()
    loss(model).backward()


def penalty(model: Any, loss: Callable[[Any], Tensor]) -> None:
    """A derivative of a derivative, which the wrapper itself supports without synchronization alone."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    with model.no_sync():
        gradients = torch.autograd.grad(loss(model), parameters, create_graph=True, allow_unused=True)
        torch.stack([one.pow(2).sum() for one in gradients if one is not None]).sum().backward()


def part_first(model: Any, loss: Callable[[Any], Tensor]) -> None:
    """Gradients of some parameters only, and then of all."""
    value = loss(model)
    for parameters in ([next(model.parameters())], list(model.parameters())[-1:]):
        for gradient in torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    value.backward()


def error_in_a_hook(model: Any, loss: Callable[[Any], Tensor]) -> None:
    def refuse(gradient: Tensor) -> None:
        raise RuntimeError("of the hook")

    handle = [one for one in model.parameters() if one.requires_grad][1].register_hook(refuse)
    with model.no_sync():
        value = loss(model)
        with pytest.raises(RuntimeError, match="of the hook"):
            value.backward(retain_graph=True)
        handle.remove()
        value.backward()
    model.zero_grad()
    loss(model).backward()


def plain(model: Any, loss: Callable[[Any], Tensor]) -> None:
    loss(model).backward()


def run_twice(way: Callable[..., None], model: Any, loss: Callable[[Any], Tensor]) -> None:
    """Compute the gradients of a model in a way, and once more with the compiled programs."""
    for _ in range(2):
        model.zero_grad()
        way(model, loss)


WAYS = [
    plain,
    backward_twice,
    accumulate,
    penalty,
    part_first,
    error_in_a_hook,
]


def loss_of_tokens(model: Any) -> Tensor:
    result: Tensor = model(tokens(0, 0)).pow(2).mean()
    return result


def loss_of_net(model: Any) -> Tensor:
    torch.manual_seed(1)
    result: Tensor = model(example()).pow(2).mean()
    return result


def loss_of_signal(model: Any) -> Tensor:
    x = torch.arange(72, dtype=torch.float64).view(4, 2, 9).sin()
    result: Tensor = model(x).pow(2).mean()
    return result


MODELS: dict[Any, Callable[[Any], Tensor]] = {
    Layers: loss_of_tokens,
    Net: loss_of_net,
    Checkpointed: loss_of_net,
    Normalized: loss_of_signal,
}
