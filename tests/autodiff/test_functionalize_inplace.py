"""The trial whether eager PyTorch refuses a write leaves the state of the process unchanged."""

from __future__ import annotations

import torch
from torch import Tensor

import thunder_core as thunder


def test_failed_trial_restores_the_settings() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = x[0]
        with torch.backends.cudnn.flags(enabled=False):
            chosen = y.masked_select(y > 0)  # which does not run on fake tensors
        return chosen.sum() + y.sum()

    before = torch.backends.cudnn.enabled
    x = torch.arange(9.0).view(3, 3).requires_grad_()
    result = thunder.jit(program)(x)
    torch.testing.assert_close(result, program(x))
    assert torch.backends.cudnn.enabled == before
    (ours,), (eager,) = torch.autograd.grad(result, x), torch.autograd.grad(program(x), x)
    torch.testing.assert_close(ours, eager)


def test_trial_does_not_change_the_generator() -> None:
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
