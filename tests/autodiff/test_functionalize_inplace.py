"""Writes to tensors that autograd tracks: gradients are eager's, and the trial of writes changes no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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


def _write_to_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    buffer = torch.zeros(2)
    detached = buffer.detach()
    detached.add_(x)
    return detached, buffer


def _write_to_row_of_data(x: Tensor) -> tuple[Tensor, Tensor]:
    buffer = torch.zeros(3, 2)
    row = buffer.data[0]
    row.mul_(2).add_(x)
    return row * 2, buffer


def _write_after_detaching(x: Tensor) -> tuple[Tensor, Tensor]:
    buffer = torch.zeros(2)
    detached = buffer.detach()
    buffer.add_(x)
    return detached, buffer


@pytest.mark.parametrize("program", [_write_to_detached, _write_to_row_of_data, _write_after_detaching])
def test_write_to_a_detached_tensor_gives_its_source_no_gradient(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    outcomes = []
    for run in (program, compiled, compiled):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        results = run(x)
        sum(result.sum() for result in results).backward()
        outcomes.append(([result.detach() for result in results], [r.requires_grad for r in results], x.grad))
    assert outcomes[0][1].count(True) == 1
    for outcome in outcomes[1:]:
        torch.testing.assert_close(outcome, outcomes[0], rtol=0, atol=0)


MAKERS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(2),
    "zeros_like": torch.zeros_like,
    "new_zeros": lambda x: x.new_zeros(2),
    "tensor": lambda x: torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gradients_flow_through_writes_to_new_tensors_under_autocast(make: Callable[[Tensor], Tensor]) -> None:
    """Below autocast, a factory function is two operations: the second one detaches the new tensor."""

    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            product = (x[None] @ x[:, None]).float()
        buffer = make(x)
        buffer[1:] = product[0]
        return buffer

    compiled = thunder.jit(program)
    gradients = []
    for run in (program, compiled):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        run(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert not thunder.last_backward_reason(compiled)


@pytest.mark.parametrize("place", [(..., slice(0, 3)), (0,), (slice(None), slice(1, 3)), (slice(None), [0, 2])])
def test_gradients_flow_through_writes_to_parts_of_complex_tensors(place: tuple[Any, ...]) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros_like(spectrum)
        real = torch.zeros_like(x)
        real[..., 1:] = x[..., 1:]
        kept[place] = spectrum[place] * weight
        return torch.fft.irfft(kept, n=x.shape[-1]) + real

    compiled = thunder.jit(program)
    for size in (6, 6, 8):
        outcomes = []
        for run in (program, compiled):
            x = torch.arange(2.0 * size).sin().view(2, size).requires_grad_()
            weight = torch.tensor(0.5 + 2j, requires_grad=True)
            result = run(x, weight)
            result.square().sum().backward()
            outcomes.append((result.detach(), x.grad, weight.grad))
        torch.testing.assert_close(*outcomes)
