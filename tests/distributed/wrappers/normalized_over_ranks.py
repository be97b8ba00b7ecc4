"""Checks of modules with collectives inside DistributedDataParallel, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.wrappers.chains import SMALL, chains_of, nodes_of

STEPS = 10


class Normalization(nn.Module):
    """Linear layers whose activations are normalized over the batches of all ranks."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5, dtype=dtype) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            total = funcol.all_reduce(y.pow(2).mean(0), "sum", dist.group.WORLD)
            x = torch.tanh(y) / (1 + total) + x
        joined = funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        result: Tensor = joined.sin() * x.sum()
        return result


def batch(step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(3, 5, generator=generator, dtype=dtype)


def training(model: Any, dtype: torch.dtype) -> list[Tensor]:
    """The losses, the gradients and the parameters of ten steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    results: list[Tensor] = []
    for step in range(STEPS):
        loss = model(batch(step, dtype)).pow(2).mean()
        loss.backward()
        results += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return [*results, *(parameter.detach().clone() for parameter in model.parameters())]


def wrapped(module: nn.Module) -> Any:
    return DistributedDataParallel(module, bucket_cap_mb=SMALL)


def collectives_in_pieces(folder: str, dtype: torch.dtype) -> None:
    """Each piece calls its collectives; a module from an artifact trains like the module in this process."""
    expected = training(wrapped(Normalization(dtype)), dtype)
    compiled = thunder.jit(Normalization(dtype))
    model = wrapped(compiled)
    chain = chains_of(model(batch(0, dtype)))
    assert len(chain.groups) >= 3
    assert_equal(training(model, dtype), expected)
    loaded = wrapped(thunder.load(saved(compiled, folder), Normalization(dtype), strict=True))
    assert len(nodes_of(loaded(batch(0, dtype)))) == len(chain.groups)
    assert_equal(training(loaded, dtype), expected)


def saved(compiled: Any, folder: str) -> str:
    """The folder of an artifact that the first rank writes."""
    if dist.get_rank() == 0:
        thunder.save(compiled, folder)
    dist.barrier()
    return folder


def other_collective_in_the_backward() -> None:
    """Ranks whose pieces differ raise an error before they communicate."""

    class Differs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            reduction = "max" if dist.get_rank() == 0 else "sum"
            result: Tensor = funcol.all_reduce(gradient, reduction, dist.group.WORLD) * 2
            return result

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(Differs.apply(self.first(x)))
            return y

    model = wrapped(thunder.jit(Net()))
    try:
        model(torch.ones(2, 4)).sum().backward()
    except thunder.errors.CollectivesDiffer as error:
        assert "max" in str(error) and "sum" in str(error), error
    else:
        raise AssertionError("no error")
