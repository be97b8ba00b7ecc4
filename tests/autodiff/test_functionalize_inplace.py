"""The trial that asks eager PyTorch whether it refuses a write leaves the process as it was."""

from __future__ import annotations

import torch
from torch import Tensor

import thunder_core as thunder


def test_a_trial_that_fails_between_two_settings_puts_them_back() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = x[0]
        with torch.backends.cudnn.flags(enabled=False):
            chosen = y.masked_select(y > 0)  # which does not run on tensors without data
        return chosen.sum() + y.sum()

    before = torch.backends.cudnn.enabled
    x = torch.arange(9.0).view(3, 3).requires_grad_()
    result = thunder.jit(program)(x)
    torch.testing.assert_close(result, program(x))
    assert torch.backends.cudnn.enabled == before
    (ours,), (eager,) = torch.autograd.grad(result, x), torch.autograd.grad(program(x), x)
    torch.testing.assert_close(ours, eager)


def test_a_trial_leaves_the_generator_alone() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(3)
        torch.manual_seed(3)
        y = x * 1
        y.mul_(2)
        return drawn, y

    x = torch.ones(3, requires_grad=True)
    torch.manual_seed(0)
    theirs, after = program(x), torch.rand(1)
    torch.manual_seed(0)
    ours = thunder.jit(program)(x)
    torch.testing.assert_close((ours, torch.rand(1)), (theirs, after), rtol=0, atol=0)
