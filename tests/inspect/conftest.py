"""An inspected subject: a small traced model."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.workflow.inspect.in_process import traces_of
from thunder_core.workflow.inspect.subject import Subject

torch.set_num_threads(1)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unused = x + 1
        del unused
        return self.down(torch.tanh(self.up(x))) + x


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="session")
def compiled() -> torch.nn.Module:
    found = thunder.jit(Tower())
    with torch.no_grad():
        found(torch.ones(2, 4))
    return found


@pytest.fixture(scope="session")
def subject(compiled: torch.nn.Module) -> Subject:
    return traces_of(compiled)
