"""The recipe `ddp` with modules and backwards of other forms, in a group of one."""

from __future__ import annotations

import types

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecipeMismatch

pytestmark = pytest.mark.usefixtures("group_of_one")


def reductions(compiled: object) -> int:
    """The number of collectives in the latest backward."""
    trace = thunder.last_backward_traces(compiled)[-1]
    return sum("all_reduce" in line.symbol.name for line in trace.bound_symbols)


@pytest.mark.parametrize("kind", [torch.nn.Sequential, torch.nn.ModuleList])
def test_modules_within_a_list_are_averaged(kind: type[torch.nn.Module]) -> None:
    class Net(torch.nn.ModuleList):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x))

    layers = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    model = Net(layers) if kind is torch.nn.ModuleList else torch.nn.Sequential(*layers)
    compiled = thunder.compile(model, "ddp", without=["inductor"])
    compiled(torch.ones(2, 4)).sum().backward()
    assert reductions(compiled) == 1
    assert all(parameter.grad is not None for parameter in compiled.parameters())


def test_forward_of_an_instance_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    model.forward = types.MethodType(type(model).forward, model)  # type: ignore[method-assign]
    with pytest.raises(RecipeMismatch, match="is set on the object instead of its class"):
        thunder.compile(model, "ddp")


@pytest.mark.parametrize("names_inputs", [False, True])
def test_gradients_are_kept_by_a_backward_that_does_not_accumulate(names_inputs: bool) -> None:
    model = torch.nn.Linear(3, 1)
    compiled = thunder.compile(model, "ddp", without=["inductor"])
    compiled(torch.ones(2, 3)).sum().backward()
    kept = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    x = torch.ones(2, 3, requires_grad=True)
    if names_inputs:
        compiled(x).sum().backward(inputs=[x])
        assert x.grad is not None
    else:
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert torch.equal(gradient, model.weight.detach().expand(2, 3))
    assert len(kept) == 2
    assert all(torch.equal(one.grad, grad) for one, grad in zip(model.parameters(), kept, strict=True))
    compiled(torch.ones(2, 3)).sum().backward()
    assert all(torch.equal(one.grad, 2 * grad) for one, grad in zip(model.parameters(), kept, strict=True))
