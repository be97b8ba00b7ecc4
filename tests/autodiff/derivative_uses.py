"""Uses of a program's gradients: hooks, retained graphs, second derivatives and results that are not used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.autodiff.derivative_cases import case, gated, leaf


@case(gated)
def gradients(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward()
    return [out, x.grad, y.grad]


@case(lambda x, weight: functional.linear(x, weight).tanh())
def of_a_vector(program):
    """`linear` of a vector removes a dimension in place."""
    x, weight = leaf(3), leaf(4, 3, seed=1)
    out = program(x, weight)
    out.square().sum().backward()
    return [out, x.grad, weight.grad]


@case(lambda x: (x.tanh(), torch.tensor([x.detach().sum(), 2.0]), torch.tensor([x.sum().item(), 1.0])))
def beside_new_tensors(program):
    """The result of `torch.tensor` is not a view of its argument."""
    x = leaf(3)
    out, *others = program(x)
    out.sum().backward()
    return [out, *others, x.grad, [other._is_view() for other in others]]


def beside_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.sum()
    return (x.tanh() if total > -100 else x), x.nonzero()


@case(beside_places)
def beside_values(program):
    """Reading the value of a tensor that requires a gradient does not require a gradient."""
    x = leaf(3)
    out, places = program(x)
    out.sum().backward()
    return [out, places, x.grad]


def through_a_new_leaf(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.detach() * 2
    y.requires_grad = True
    return torch.tanh(y @ weight)


@case(through_a_new_leaf)
def new_leaf(program):
    x, weight = leaf(3).detach(), leaf(3, 3, seed=1)
    out = program(x, weight)
    out.sum().backward()
    return [out, weight.grad]


@case(gated)
def gradients_add_up(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    for _ in range(3):
        program(x, y).square().sum().backward()
    return [x.grad, y.grad]


@case(gated)
def mixed_with_eager(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(program((x * 2).sigmoid(), y).cos(), x) + x
    out.sum().backward()
    return [out, x.grad, y.grad]


@case(gated)
def partly_required(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1).detach()
    out = program(x, y)
    out.sum().backward()
    return [out, x.grad, y.grad, out.requires_grad]


@case(gated)
def nothing_required(program):
    out = program(leaf(3, 4).detach(), leaf(3, 4).detach())
    return [out, out.requires_grad, out.grad_fn is None]


@case(gated)
def without_grad(program):
    with torch.no_grad():
        out = program(leaf(3, 4), leaf(3, 4, seed=1))
    return [out, out.requires_grad]


@case(gated)
def retained(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward(retain_graph=True)
    out.square().sum().backward()
    return [x.grad, y.grad]


@case(gated)
def twice_without_retaining(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    return [x.grad]


@case(gated)
def hooks(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.clone()))
    y.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.clone()))
    out = program(x, y)
    out.register_hook(lambda grad: grad * 3)
    out.retain_grad()
    out.sum().backward()
    return [*seen, x.grad, y.grad, out.grad]


@case(gated)
def autograd_grad(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    return list(torch.autograd.grad(out, [y], torch.full_like(out, 2.0)))


@case(gated)
def expanded_gradient(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.backward(torch.ones(()).expand(3, 4))
    return [x.grad, y.grad]


@case(gated)
def second_derivative(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    hidden = x * 1.5
    first = torch.autograd.grad(program(hidden, y).square().sum(), [x, y, hidden], create_graph=True)
    second = torch.autograd.grad(sum(item.square().sum() for item in first), [x, y])
    return [*first, *second]


@case(gated)
def gradcheck(program):
    x, y = (leaf(2, 2, seed=seed).double().detach().requires_grad_(True) for seed in (0, 1))
    return [torch.autograd.gradcheck(program, (x, y)), torch.autograd.gradgradcheck(program, (x, y))]


@case(gated)
def changed_behind_its_back(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    hidden = x * 1
    out = program(hidden, y)
    hidden.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    return []


@case(gated)
def result_changed_in_place(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out *= 2
    out.sum().backward()
    return [out, x.grad]


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x @ y
    return {"a": hidden.exp(), "b": [hidden.argmax(-1), x.detach() * 2, y.sin()], "c": (3, None)}


@case(several)
def unused_outputs(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    out = program(x, y)
    out["b"][2].sum().backward()
    return [out["a"], *out["b"], x.grad, y.grad, out["b"][0].requires_grad, out["b"][1].requires_grad]


@case(several)
def all_outputs(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    out = program(x, y)
    (out["a"].sum() + out["b"][2].sum()).backward()
    return [x.grad, y.grad]
