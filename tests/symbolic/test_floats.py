"""A float that changes from call to call is a symbol in programs with gradients, too: a rate, a temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

FUNCTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "product": lambda x, rate: x * rate,
    "quotient": lambda x, rate: (x / rate).softmax(0),
    "divided": lambda x, rate: rate / x,
    "difference": lambda x, rate: rate - x,
    "slope": lambda x, rate: functional.leaky_relu(x - 1, rate),
    "bound": lambda x, rate: x.clamp(max=rate),
    "chosen": lambda x, rate: torch.where(x > rate, x, rate),
    "weighted": lambda x, rate: torch.add(x, x * x, alpha=rate),
    "computed": lambda x, rate: x * (rate * 2 + 1) - rate / 3,
    "written": lambda x, rate: (x * 2).mul_(rate),
    "filled": lambda x, rate: x * torch.full((4,), rate),
    "both bounds": lambda x, rate: functional.hardtanh(x, -rate, rate),
    "branch": lambda x, rate: x * rate if rate > 0.4 else x - rate,
    "power": lambda x, rate: x.pow(rate),
    "norm": lambda x, rate: functional.layer_norm(x, (4,), eps=rate),
}
# PyTorch's formulas ask for the value of an exponent, and its normalization takes a plain float.
MOST = {"branch": 2, "power": 5, "norm": 5}


def gradient(function: Callable[..., Tensor], x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    result = function(x, rate)
    return result.detach(), torch.autograd.grad((result * result).sum(), x)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_a_program_with_gradients_serves_all_floats(name: str) -> None:
    compiled = thunder.jit(FUNCTIONS[name], cache="symbolic values")
    x = (torch.rand(4) + 0.5).requires_grad_()
    for number in (2, 3, 4, 5, 10):
        found, wanted = (gradient(one, x, number / 7) for one in (compiled, FUNCTIONS[name]))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert thunder.cache_misses(compiled) <= MOST.get(name, 1)
    assert not thunder.last_backward_reason(compiled)


def test_a_rate_that_changes_by_default_makes_two_programs() -> None:
    compiled = thunder.jit(lambda x, rate: (x * rate).exp())
    x = torch.rand(4, requires_grad=True)
    for number in range(1, 6):
        found, wanted = (gradient(one, x, number / 7) for one in (compiled, lambda x, rate: (x * rate).exp()))
        torch.testing.assert_close(found, wanted)
    assert thunder.cache_misses(compiled) == 2


def test_what_is_decided_by_a_float_is_a_constraint_on_floats() -> None:
    """Between zero and one there are floats, if no integers."""
    compiled: Any = thunder.jit(lambda x, rate: functional.dropout(x, rate * 0.5), cache="symbolic values")
    x = torch.ones(4, requires_grad=True)
    for number in (0.25, 0.5, 1.0):
        torch.manual_seed(0)
        found = compiled(x, number)
        torch.manual_seed(0)
        torch.testing.assert_close(found, functional.dropout(x, number * 0.5))


def test_a_region_takes_no_float_for_an_integer() -> None:
    def scaled(x: Tensor, rate: float) -> Tensor:
        return (x.sin() * rate + x.cos()).exp()

    compiled = thunder.jit(scaled, executors=["inductor", "torch"], cache="symbolic values")
    x = torch.rand(4, requires_grad=True)
    for rate in (0.3, 0.9, 1.7):
        torch.testing.assert_close(gradient(compiled, x, rate), gradient(scaled, x, rate))
    assert thunder.cache_misses(compiled) == 1
