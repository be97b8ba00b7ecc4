"""Autocast and derivatives: outside of a program and inside, results and gradients equal eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program


class Net(torch.nn.Module):
    """Layers that autocast treats differently; one weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(self.norm(self.first(x))))
        attended = functional.scaled_dot_product_attention(hidden[None], hidden[None], hidden[None])[0]
        return functional.cross_entropy(self.second(attended + x), torch.tensor([0, 1, 2]))


class Within(Net):
    """The same network with autocast inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = super().forward(x)
            with torch.autocast("cpu", enabled=False):
                return loss + functional.linear(x.float(), self.first.weight).square().mean()


def outcome(module: torch.nn.Module, model: torch.nn.Module, outside: bool, *, inside: bool = False) -> list[Any]:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        loss = module(x)
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
@pytest.mark.parametrize(("kind", "outside"), [(Net, True), (Within, False), (Within, True)])
def test_training_is_eagers(kind, outside, executors):
    torch.manual_seed(0)
    model = kind()
    twin = copy.deepcopy(model)
    compiled = thunder.jit(twin, executors=executors)
    for _ in range(2):
        found, expected = outcome(compiled, twin, outside), outcome(model, model, outside)
        tolerance = {"rtol": 0.0, "atol": 0.0} if executors == ("torch",) else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(found, expected, **tolerance)
    assert last_program(compiled).no_backward_reason == ""
    assert not torch.is_autocast_enabled("cpu")


def test_the_backward_has_separate_casts():
    torch.manual_seed(0)
    model = Net()
    compiled = thunder.jit(model)
    outcome(compiled, model, outside=True)
    lines = thunder.last_backward_traces(compiled)[0].bound_symbols
    products = [line for line in lines if line.symbol.name == "torch.ops.aten.mm.default"]
    assert products
    assert {line.output.dtype for line in products} == {torch.bfloat16}


def test_a_backward_under_autocast_computes_the_same():
    torch.manual_seed(0)
    model = Net()
    compiled = thunder.jit(copy.deepcopy(model))
    found = outcome(compiled, compiled, True, inside=True)
    torch.testing.assert_close(found, outcome(model, model, True), rtol=0.0, atol=0.0)


def test_second_derivatives_under_autocast():
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(2)).requires_grad_(True)
    function = lambda x: (x @ weight).float().tanh().sum()  # noqa: E731
    found = []
    for call in (function, thunder.jit(function)):
        x = torch.ones(2, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            value = call(x)
        (first,) = torch.autograd.grad(value, [x], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, weight]))
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("outside", [True, False])
def test_functions_of_derivatives_under_autocast(outside):
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.gelu(x @ weight).float().square().sum()

    x = torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        found = (
            thunder.grad(function)(x),
            thunder.jvp(function, (x,), (x,)),
            thunder.vjp(function, x)[1](torch.tensor(1.0)),
        )
        after = thunder.jit(lambda x: (thunder.grad(function)(x), x @ weight))(x)[1].dtype
        expected = torch.func.grad(function)(x), (function(x), (torch.func.grad(function)(x) * x).sum())
        assert after == (x @ weight).dtype
    torch.testing.assert_close([found[0], found[2][0]], [expected[0]] * 2, rtol=0.0, atol=0.0)
    torch.testing.assert_close(found[1], expected[1], rtol=0.02, atol=0.02)
