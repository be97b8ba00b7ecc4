"""The states of generators: the CPU's, those of CUDA devices that may be used, and generators among the arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.backend.runtime.randomness import RandomState, drawing_from
from thunder_core.compilation.compiler import last_backward_reason


class TwoDevices:
    """PyTorch's generator functions for a machine with two CUDA devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = {0: torch.tensor([1]), 1: torch.tensor([2])}
        self.used = True
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.used)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: self.states[device])
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: self.states.__setitem__(device, state))

    @property
    def numbers(self) -> list[int]:
        """The states as numbers."""
        return [int(state) for state in self.states.values()]


def test_generators_of_all_devices_start_from_a_state_and_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = TwoDevices(monkeypatch)
    generator = torch.Generator().manual_seed(3)
    state = RandomState.now([generator, "no generator"])
    wanted = torch.rand(2), torch.rand(2, generator=generator)
    devices.states = {0: torch.tensor([10]), 1: torch.tensor([20])}
    with drawing_from(state):
        assert devices.numbers == [1, 2]
        again = torch.rand(2), torch.rand(2, generator=generator)
        devices.states[1] = torch.tensor([99])
    torch.testing.assert_close(again, wanted, rtol=0, atol=0)
    assert devices.numbers == [10, 20]


def test_cuda_is_not_initialized_to_read_its_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = TwoDevices(monkeypatch)
    devices.used = False
    assert RandomState.now().cuda == {}


def test_a_second_derivative_draws_the_numbers_of_the_forward_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = TwoDevices(monkeypatch)
    compiled = thunder.jit(lambda x: functional.dropout(x, 0.5).square())
    x = torch.randn(8, requires_grad=True)
    y = compiled(x)
    assert last_backward_reason(compiled) == ""
    seen: list[list[int]] = []
    recorded = RandomState.put_back
    monkeypatch.setattr(RandomState, "put_back", lambda state: (recorded(state), seen.append(devices.numbers))[0])
    devices.states[0] = torch.tensor([7])
    torch.autograd.grad(y.sum(), x, create_graph=True)
    assert seen == [[1, 2], [7, 2]]


@pytest.mark.gpu
def test_masks_on_a_gpu_match_the_forward_in_all_derivatives() -> None:
    def dropped(x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5).pow(3)

    def twice(program: object) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.linspace(1, 2, 64, device="cuda", requires_grad=True)
        y = program(x)  # type: ignore[operator]
        torch.rand(8, device="cuda")
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return [y.detach(), first.detach(), second, torch.rand(4, device="cuda")]

    torch.testing.assert_close(twice(thunder.jit(dropped)), twice(dropped))
