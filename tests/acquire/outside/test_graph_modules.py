"""Modules of `torch.fx`: their layers, buffers, hooks and generated code are guarded like those of other modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder_core as thunder

X = torch.linspace(-1, 1, 12).view(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).relu() * self.scale


class Interpreter(torch.fx.Interpreter):
    """Notes the layers that it calls."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        self.called.append(target)
        return super().call_module(target, args, kwargs)


def interpreted(module: torch.fx.GraphModule) -> Callable[[torch.Tensor], Any]:
    interpreter = Interpreter(module)
    interpreter.called = []
    return lambda x: (interpreter.run(x), len(interpreter.called))


SUBJECTS: dict[str, Callable[[torch.fx.GraphModule], Callable[[torch.Tensor], Any]]] = {
    "a module": lambda module: module,
    "a function that calls it": lambda module: lambda x: module(x),
    "an interpreter": interpreted,
}


def hook(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def change_graph(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.target == "relu":
            node.target = "tanh"
    module.recompile()


CHANGES: list[Callable[[torch.fx.GraphModule], Any]] = [
    lambda module: setattr(module, "scale", torch.full((4,), 3.0)),
    lambda module: setattr(module.linear, "weight", nn.Parameter(torch.full((4, 4), 0.5))),
    lambda module: setattr(module, "linear", nn.Linear(4, 4)),
    lambda module: module.linear.register_forward_hook(hook),
    lambda module: module.eval(),
    change_graph,
]


@pytest.mark.parametrize("name", SUBJECTS)
def test_changes_of_a_graph_module_are_noticed(name: str) -> None:
    results = []
    for compiler in (thunder.jit, lambda subject: subject):
        torch.manual_seed(0)
        module = torch.fx.symbolic_trace(Net())
        program = compiler(SUBJECTS[name](module))
        result = [program(X)]
        for change in CHANGES:
            change(module)
            result.append(program(X))
            loss = result[-1] if isinstance(result[-1], torch.Tensor) else result[-1][0]
            loss.square().sum().backward()
            result.append([parameter.grad for parameter in module.parameters()])
            module.zero_grad()
        results.append([*result, dict(module.named_buffers())])
    torch.testing.assert_close(*results)
