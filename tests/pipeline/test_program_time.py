"""The shares of executors in the time of a program, compared with the timed program."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.workflow.pipeline.session.program_time import program_shares


class Scaled(torch.nn.Module):
    """A linear layer whose outputs are transposed in memory, times a size."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu().t() * x.shape[0]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_forward_and_backward_are_timed_at_fixed_and_at_symbolic_sizes(cache):
    model = Scaled()
    compiled = thunder.jit(model, cache=cache)
    for size in (3, 5):
        compiled(x=torch.randn(size, 4)).sum().backward()
    shares = program_shares(thunder.last_program(compiled), model, {"x": torch.randn(5, 4)})
    assert sum(shares.forward.values()) + sum(shares.backward.values()) == pytest.approx(1.0)
