"""A derivative that would need a second run of a program says why the program cannot run again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import NotDifferentiable


def program(x: Tensor, queue: Tensor, other: Tensor) -> Tensor:
    result = (x.sin() * queue[:3].clone()).sum() + other[0].detach()
    queue[0] = 1
    return result


MEMORY = torch.zeros(8)
INPUTS = {
    "would take more than 64 MiB": lambda: (torch.zeros(20_000_000), torch.zeros(3)),
    r"of shape \[4\] and \[6\] share memory": lambda: (MEMORY[:4], MEMORY[2:]),
}


@pytest.mark.parametrize("why", INPUTS)
def test_the_error_says_why_a_program_cannot_run_again(why: str) -> None:
    x = torch.ones(3, requires_grad=True)
    result = thunder.jit(program)(x, *INPUTS[why]())
    with pytest.raises(NotDifferentiable, match=why):
        torch.autograd.grad(result, x, create_graph=True)
