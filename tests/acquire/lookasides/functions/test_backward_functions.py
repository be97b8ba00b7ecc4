"""Functions of the program that autograd calls in a backward pass of the program are interpreted too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder

records: list[Any] = []
X = torch.tensor([1.0, 2.0, 3.0])


def tell(*values: Any) -> None:
    """Record the arguments of a hook as text."""
    records.append(f"{values}")


class Node(torch.autograd.Function):
    """A function that uses another factor in the backward if the gradient is large, and records its calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        """Return the scaled tensor."""
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, scaled by the saved factor."""
        records.append((f"{grad}", grad.shape, ctx.factor))
        (x,) = ctx.saved_tensors
        return (grad * ctx.factor if x.sum() > 3 else grad * x), None


class Kept(nn.Module):
    """A module with a backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(lambda _, before, after: tell(before, after))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tensor times three."""
        return x * 3


kept = Kept()


def of_node(x: Tensor) -> Tensor:
    """Return the gradient through an autograd node that the program defines."""
    (grad,) = torch.autograd.grad(Node.apply(x, 3.0).sum(), x)
    return grad


def of_node_twice(x: Tensor) -> Tensor:
    """Return the gradient of a gradient through that node."""
    (grad,) = torch.autograd.grad((Node.apply(x, 3.0) ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad(grad.sum(), x)[0]


def hook_of_tensor(x: Tensor) -> Tensor:
    """Register a hook on a tensor that the program makes."""
    y = x * 2
    y.register_hook(tell)
    y.sum().backward()
    return x.grad * 1


def hook_of_node(x: Tensor) -> Tensor:
    """Register hooks on an autograd node."""
    y = x * 2
    y.grad_fn.register_hook(tell)
    y.grad_fn.register_prehook(tell)
    y.sum().backward()
    return x.grad * 1


def hook_of_module(x: Tensor) -> Tensor:
    """Register a hook on a module; PyTorch wraps the hook in functions of its own."""
    kept(x * 2).sum().backward()
    return x.grad * 1


def hook_of_several(x: Tensor) -> Tensor:
    """Register a hook on several tensors."""
    y = x * 2
    z = y * 1
    torch.autograd.graph.register_multi_grad_hook([y, z], tell)
    z.sum().backward()
    return x.grad * 1


def hook_of_own_leaf(x: Tensor) -> Tensor:
    """Register a hook that runs after the gradient of a leaf of the program is accumulated."""
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda leaf: tell(leaf.grad))
    (weight * x).sum().backward()
    return weight.grad * 1


FUNCTIONS = (of_node, of_node_twice, hook_of_tensor, hook_of_node, hook_of_module, hook_of_several, hook_of_own_leaf)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_and_effects_of_each_call_match_eager(function: Callable[[Tensor], Tensor]) -> None:
    outcomes = []
    for called in (function, thunder.jit(function)):
        records.clear()
        results = [called(torch.full((2,), value, requires_grad=True)) for value in (1.0, 2.0, 1.0, 2.0)]
        outcomes.append((results, list(records)))
    (expected, texts), (found, ours) = outcomes
    torch.testing.assert_close(found, expected)
    assert ours == texts
    assert len(texts) >= len(expected)


def with_argument(x: Tensor, factor: float) -> Tensor:
    h = x * 2
    h.register_hook(lambda gradient: gradient * x.detach() * factor)
    return (h * h).sum()


def with_partial(x: Tensor, factor: float) -> Tensor:
    h = x * 2
    h.register_hook(partial(torch.mul, x.data if factor > 9 else X))
    return (h * h).sum()


@pytest.mark.parametrize("program", [with_argument, with_partial])
def test_hook_that_outlives_the_call_reads_the_closure_of_its_call(program: Callable[..., Tensor]) -> None:
    """The backward passes after all calls of a program call the same hook."""
    compiled = thunder.jit(program)
    for factor in (2.0, 3.0, 5.0):
        found, expected = (torch.full((3,), factor, requires_grad=True) for _ in range(2))
        compiled(found, factor).backward()
        program(expected, factor).backward()
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("make_hook", [lambda d: lambda g: g * d, lambda d: partial(torch.mul, d)])
def test_hook_that_reads_a_result_of_the_program_is_called_by_the_backward(make_hook: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        h.register_hook(make_hook(x.detach() * 3))
        return (h * h).sum()

    compiled = thunder.jit(program)
    for value in (1.0, 2.0):
        found, expected = (torch.full((3,), value, requires_grad=True) for _ in range(2))
        compiled(found).backward()
        program(expected).backward()
        torch.testing.assert_close(found.grad, expected.grad)


level = 1.0
table = {"level": 1.0}


class ReadsInBackward(torch.autograd.Function):
    """A function whose backward reads a global, an item and an attribute of its class."""

    level = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the exponential."""
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient, scaled by three values from outside."""
        return gradient * level + table["level"] * 10 + ReadsInBackward.level * 100


def _set_levels(value: float) -> None:
    global level
    level = table["level"] = ReadsInBackward.level = value


def _function_with_closure() -> tuple[type[torch.autograd.Function], Callable[[float], None]]:
    """Return a function whose backward reads a closure variable, and a function that sets the variable."""
    scale = 1.0

    def scaled(gradient: Tensor) -> Tensor:
        return gradient + scale

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return scaled(gradient) * scale

    def set_scale(value: float) -> None:
        nonlocal scale
        scale = value

    return Scaled, set_scale


class HasDefault(torch.autograd.Function):
    """A function whose backward has a default."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the exponential."""
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, scale: float = 1.0) -> Tensor:
        """Return the scaled gradient."""
        return gradient * scale


def _set_default(value: float) -> None:
    HasDefault.backward.__defaults__ = (value,)


CHANGES: dict[str, tuple[type[torch.autograd.Function], Callable[[float], None]]] = {
    "outside": (ReadsInBackward, _set_levels),
    "closure": _function_with_closure(),
    "default": (HasDefault, _set_default),
}


# Defaults are guarded at the call, but not read again in the backward.
TIMES = [*((name, False) for name in CHANGES), ("outside", True), ("closure", True)]


@pytest.mark.parametrize(("name", "between"), TIMES)
def test_backward_reads_current_values(name: str, between: bool) -> None:
    kind, change = CHANGES[name]

    def program(x: Tensor) -> Tensor:
        return (kind.apply(x * 2) * 3).sum()

    outcomes = []
    compiled = thunder.jit(program)
    for run in (program, compiled):
        change(1.0)
        gradients = []
        for value in (1.0, 2.0, 5.0, 1.0):
            x = X.clone().requires_grad_()
            if not between:
                change(value)
            result = run(x)
            if between:
                change(value)
            result.backward()
            gradients.append(x.grad)
        outcomes.append(gradients)
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)
    assert thunder.last_backward_reason(compiled) == ""


def test_backward_reads_current_values_after_a_write_to_an_input() -> None:
    def program(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return (ReadsInBackward.apply(x * 2) * count).sum()

    outcomes = []
    for run in (program, thunder.jit(program)):
        _set_levels(1.0)
        x, count = X.clone().requires_grad_(), torch.zeros(())
        for value in (1.0, 2.0):
            result = run(x, count)
            _set_levels(value)
            result.backward()
        outcomes.append((x.grad, count))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)
