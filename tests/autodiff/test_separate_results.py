"""Results of one program with backward passes of their own: they are eager's, and so is the error for a freed graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder


class Towers(nn.Module):
    """An actor and a critic; the critic also reads the actor's result without its gradient."""

    def __init__(self, *, shares_trunk: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3) if shares_trunk else nn.Identity()
        self.actor = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actor's result, the critic's result, and a result of the input alone."""
        x = self.trunk(x)
        return self.actor(x), self.critic(x), x.square().sum()


def _sum(value: Tensor) -> Tensor:
    return value.square().sum()


def _train(model: Any, run: Callable[[Tensor], Any], *, steps_between: bool, retain_graph: bool) -> list[Any]:
    """Return the gradients and parameters of steps whose results have backward passes of their own."""
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (model.actor, model.critic)]
    torch.manual_seed(1)
    found = []
    for size in (4, 4, 6, 6):
        x = torch.randn(size, 3, requires_grad=True)
        results = run(x)
        for result, optimizer in zip(results, [*optimizers, None], strict=True):
            model.zero_grad()
            _sum(result).backward(retain_graph=retain_graph)
            found.append([None if p.grad is None else p.grad.clone() for p in (x, *model.parameters())])
            if optimizer is not None and steps_between:
                optimizer.step()
    return [*found, [p.detach().clone() for p in model.state_dict().values()]]


@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("steps_between", [False, True])
def test_separate_results_have_separate_passes(steps_between: bool, retain_graph: bool) -> None:
    outcomes = []
    for compile_model in (lambda model: model, thunder.jit):
        torch.manual_seed(0)
        model = Towers()
        outcomes.append(_train(model, compile_model(model), steps_between=steps_between, retain_graph=retain_graph))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


def _raised(program: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as caught:
        program()
    return str(caught.value)[:60]


def test_second_pass_of_shared_operations_raises() -> None:
    model = Towers(shares_trunk=True)
    for run in (model, thunder.jit(model)):
        first, second, _ = run(torch.ones(4, 3))
        _sum(first).backward()
        assert "Trying to backward through the graph a second time" in _raised(_sum(second).backward)


def test_second_pass_of_the_same_result_raises() -> None:
    model = Towers()
    for run in (model, thunder.jit(model)):
        first, second, third = run(torch.ones(4, 3, requires_grad=True))
        for result in (second, third, first):
            _sum(result).backward()
        for result in (first, second, third):
            assert "Trying to backward through the graph a second time" in _raised(_sum(result).backward)


def test_write_to_a_parameter_of_a_later_pass_raises() -> None:
    model = Towers()
    for run in (model, thunder.jit(model)):
        first, second, _ = run(torch.ones(4, 3))
        _sum(first).backward()
        with torch.no_grad():
            model.critic[3].weight.add_(1)
        assert "one of the variables needed for gradient computation" in _raised(_sum(second).backward)


@pytest.mark.parametrize("retain_graph", [False, True])
def test_write_to_a_parameter_of_an_earlier_pass_raises(retain_graph: bool) -> None:
    model = Towers()
    for run in (model, thunder.jit(model)):
        first, second, _ = run(torch.ones(4, 3))
        with torch.no_grad():
            model.critic[3].weight.add_(1)
        _sum(first).backward(retain_graph=retain_graph)
        assert "one of the variables needed for gradient computation" in _raised(_sum(second).backward)
