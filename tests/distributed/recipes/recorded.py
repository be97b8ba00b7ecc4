"""Recipes for parallel training on programs that autograd records: gradients equal the averages of eager PyTorch.

Such programs have no backward of their own, because of a hook, or because a module that writes to buffers runs twice.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import thunder_core as thunder
from tests.distributed.agreement.agreement import PATIENCE
from thunder_core.backend.runtime import agreement
from thunder_core.foundation.errors import CollectivesDiffer, OperationFailed

EAGER = ["inductor"]
PLAN = {"up": "colwise", "down": "rowwise"}


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5, dtype=torch.float64)
        self.up = nn.Linear(5, 8, dtype=torch.float64)
        self.down = nn.Linear(8, 5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.down(self.up(self.hidden(self.first(x))).relu())

    def hidden(self, x: Tensor) -> Tensor:
        return x


class Hooked(Base):
    def hidden(self, x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return x


class Shared(Base):
    """A batch normalization that runs twice, and writes to its statistics each time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.norm(super().forward(x))

    def hidden(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(x)
        return result


class SavedOnCpu(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


class Sine(torch.autograd.Function):
    """A function whose backward reads a value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * float(gradient.sum().item() > -1e9)


class WithFunction(Base):
    def hidden(self, x: Tensor) -> Tensor:
        result: Tensor = Sine.apply(x)
        return result


class WithCompiledFunction(Base):
    def __init__(self) -> None:
        super().__init__()
        self.function = thunder.jit(torch.sin, cache="same input")

    def hidden(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x)
        return result


class WithCompiledLayer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.up = thunder.jit(self.up, cache="same input")


MODELS = {
    "a hook": Hooked,
    "a module that writes twice": Shared,
    "tensors saved on the CPU": SavedOnCpu,
    "a function with its own backward": WithFunction,
    "a compiled function": WithCompiledFunction,
}


def signal(step: int, rank: int) -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))


def whole(tensor: Any) -> Tensor:
    """The full tensor of a DTensor."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def averages(model: nn.Module, ranks: list[int], steps: int) -> list[Tensor]:
    """The gradients of eager PyTorch in one process, averaged over the inputs of these ranks and summed over steps.

    The inputs of all ranks run on a copy of the buffers, as on separate ranks.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for rank in ranks:
        model.load_state_dict(buffers, strict=False)
        for step in range(steps):
            (model(signal(step, rank)).pow(2).mean() / len(ranks)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def gradients(model: Any, rank: int, steps: int) -> list[Tensor]:
    """The gradients of a compiled model after steps, of which only the last synchronizes."""
    for step in range(steps):
        with model.no_sync() if step < steps - 1 else nullcontext():
            model(signal(step, rank)).pow(2).mean().backward()
    assert not thunder.last_backward_traces(model), "autograd must record the program"
    return [whole(parameter.grad) for parameter in model.parameters()]


def has_eagers_gradients(recipe: str, name: str, without: list[str] = EAGER) -> None:
    model = MODELS[name]
    compiled = thunder.compile(model(), recipe, without=without)
    actual = gradients(compiled, dist.get_rank(), steps=2)
    torch.testing.assert_close(actual, averages(model(), list(range(dist.get_world_size())), steps=2))


def tensor_parallel_has_eagers_gradients(name: str) -> None:
    compiled = thunder.compile(MODELS[name](), "tensor-parallel", without=EAGER, parallelize_plan=PLAN)
    torch.testing.assert_close(gradients(compiled, 0, steps=1), averages(MODELS[name](), [0], steps=1))


class Chosen(nn.Module):
    """Layers of one size, of which the caller chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor, number: int) -> Any:
        return self.layers[number](x)


def other_parameters_are_reported(recipe: str) -> None:
    """The collectives of the ranks have equal sizes, but the ranks use different layers."""
    compiled = thunder.compile(Chosen(), recipe, without=EAGER)
    with (
        mock.patch.object(agreement, "WAIT_SECONDS", PATIENCE),
        pytest.raises(CollectivesDiffer, match=r"layers\[0\]\..*layers\[1\]\.|layers\[1\]\..*layers\[0\]\."),
    ):
        compiled(torch.ones(2, 3), dist.get_rank()).sum().backward()


def ddp_refuses_a_compiled_layer() -> None:
    compiled = thunder.compile(WithCompiledLayer(), "ddp", without=EAGER)
    with pytest.raises(OperationFailed, match="is compiled with its own settings"):
        compiled(signal(0, 0))
