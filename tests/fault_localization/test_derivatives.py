"""Derivatives beside those of autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.fault_localization.examined import activated, activating, examined, numbers, silu
from thunder_core.passes.autodiff import rules


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Derivatives that are registered are forgotten behind the test."""
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


def test_a_right_derivative(forgotten):
    derive_silu(1.0)
    assert not examined(activated, x=numbers().requires_grad_()).faults


@pytest.mark.parametrize("factor", [1.001, -1.0])
def test_a_wrong_derivative_is_named_by_its_line_of_the_forward(forgotten, factor):
    derive_silu(factor)
    fault = examined(activated, x=numbers().requires_grad_()).faults[0]
    assert fault.kind == "differentiation"
    assert "silu(" in fault.line
    assert fault.difference.startswith("the gradient of ")


def test_a_right_backward_of_a_kernel():
    executor = activating(lambda x: x * torch.sigmoid(x))
    assert not examined(activated, (executor, "torch"), x=numbers().requires_grad_()).faults
