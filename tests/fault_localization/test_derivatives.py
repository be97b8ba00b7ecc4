"""Derivatives compared with those of autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.fault_localization.examined import activating, examine_call, numbers, silu, silu_sum
from tests.planted.faults import plant_sample
from tests.planted.subject import subject
from thunder_core.passes.autodiff import rules
from thunder_core.workflow.fault_localization import backward, backward_lockstep, lockstep


@pytest.fixture(params=["whole", "in lockstep"])
def gradients_held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all gradients of a small program, and compare the gradients of a large program one by one."""
    if request.param == "in lockstep":
        for module in (lockstep, backward):
            monkeypatch.setattr(module, "LARGE_VALUES", 0)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the registered derivatives after the test."""
    monkeypatch.setattr(rules, "_rules", dict(rules._rules))
    before = set(rules.OWN_DERIVATIVES)
    yield
    rules.OWN_DERIVATIVES.intersection_update(before)


def derive_silu(factor: float) -> None:
    """Register a derivative of `silu`, times a factor."""

    def save(ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        ctx.save_for_backward(args[0])

    @thunder.register_derivative(silu, setup_context=save)
    def derivative(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))) * factor


def test_a_right_derivative(gradients_held, forgotten):
    derive_silu(1.0)
    assert not examine_call(silu_sum, x=numbers().requires_grad_()).faults


@pytest.mark.parametrize("factor", [1.001, -1.0])
def test_a_wrong_derivative_is_named_by_its_line_of_the_forward(gradients_held, forgotten, factor):
    derive_silu(factor)
    fault = examine_call(silu_sum, x=numbers().requires_grad_()).faults[0]
    assert fault.kind == "differentiation"
    assert "silu(" in fault.line
    assert fault.difference.startswith("the gradient of ")


def test_a_right_backward_of_a_kernel(gradients_held):
    executor = activating(lambda x: x * torch.sigmoid(x))
    assert not examine_call(silu_sum, (executor, "torch"), x=numbers().requires_grad_()).faults


def shared(x: torch.Tensor) -> torch.Tensor:
    """A tensor that is read three times, parts of a tensor, and a product with itself."""
    first, second = (x @ x.t()).tanh().chunk(2)
    return (silu(x) * x).sum() + (first * second).sum() + x.exp().mean()


def dropped(x: torch.Tensor) -> torch.Tensor:
    """Dropout, whose backward reads the random mask."""
    return torch.nn.functional.dropout(torch.tanh(x * 2), 0.5).sum()


@pytest.mark.parametrize("function", [shared, dropped])
def test_right_gradients(gradients_held, function):
    report = examine_call(function, x=numbers().requires_grad_())
    assert not report.faults
    assert "differentiate" in report.stages


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_right_training_program_has_no_fault_in_lockstep(family, monkeypatch):
    monkeypatch.setattr(lockstep, "LARGE_VALUES", 0)
    own = subject(family, train=True)
    assert not own.examined(own.program)


def test_wrong_lines_of_a_backward_are_caught_in_lockstep(monkeypatch):
    monkeypatch.setattr(lockstep, "LARGE_VALUES", 0)
    outcomes = [outcome for outcome in plant_sample("llama", {"derivative": 6}, seed=3) if outcome.counts]
    assert len(outcomes) > 3
    assert all(outcome.named for outcome in outcomes), "\n".join(map(str, outcomes))


def test_gradients_in_lockstep_are_dropped_when_they_were_compared(monkeypatch):
    own = subject("llama", train=True, executors="torch")
    most = 0
    compared = backward_lockstep.GradientsInTurn.of

    def of(gradients, name):
        nonlocal most
        result = compared(gradients, name)
        most = max(most, len(gradients._waiting))
        return result

    monkeypatch.setattr(lockstep, "LARGE_VALUES", 0)
    monkeypatch.setattr(backward_lockstep.GradientsInTurn, "of", of)
    assert not own.examined(own.program)
    assert 0 < most < 12
