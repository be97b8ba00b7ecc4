"""A `torch.autograd.Function` inside transforms of torch.func: its own rules and its own backward are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap

import thunder_core as thunder

# PyTorch compiles its own decompositions at their first use.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

X = torch.tensor([0.5, 1.0, 2.0])
W = torch.linspace(0.5, 2.0, 3, requires_grad=True)
FACTOR = {"jvp": 50.0}


class Sine(torch.autograd.Function):
    """A function whose vmap rule PyTorch generates and whose derivatives differ from the derivative of its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 100 * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * FACTOR["jvp"]


class Multiples(torch.autograd.Function):
    """A function with its own vmap rule, which applies the function again."""

    @staticmethod
    def forward(x: Tensor, number: float) -> tuple[Tensor, Tensor]:
        return x * 2, x * number

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[0])
        ctx.number = inputs[1]

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        return first * 7 * ctx.saved_tensors[0] + second * ctx.number, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, number: float) -> Any:
        return Multiples.apply(x.movedim(in_dims[0], 0), number), (0, 0)


class Old(torch.autograd.Function):
    """A function without `setup_context`, which no transform accepts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "vmap": lambda x: vmap(Sine.apply)(x * W),
    "grad": lambda x: grad(lambda y: Sine.apply(y * W).sum())(x),
    "grad of grad": lambda x: grad(lambda z: grad(lambda y: Sine.apply(y * W).sum())(z).sin().sum())(x),
    "vmap of grad": lambda x: vmap(grad(Sine.apply))(x * W),
    "grad of vmap": lambda x: grad(lambda y: vmap(Sine.apply)(y).sum())(x * W),
    "vmap of vmap": lambda x: vmap(vmap(Sine.apply))(x.outer(W)),
    "jacrev": lambda x: jacrev(Sine.apply)(x * W),
    "jvp": lambda x: jvp(Sine.apply, (x,), (W,)),
    "vjp": lambda x: vjp(lambda y: Sine.apply(y * W), x)[1](x),
    "own vmap": lambda x: vmap(lambda y: Multiples.apply(y, 3.0))(x * W),
    "own vmap of grad": lambda x: vmap(grad(lambda y: sum(Multiples.apply(y.sin(), 3.0))))(x * W),
}


def used(run: Callable[[Tensor], Any], *, trains: bool) -> list[Any]:
    """Return all results of a program, and the gradients if it is trained."""
    x = X.clone().requires_grad_(trains)
    with torch.set_grad_enabled(trains):
        results = run(x)
    if not trains:
        return [results]
    loss = sum(leaf.sin().sum() for leaf in torch.utils._pytree.tree_leaves(results))
    return [results, *torch.autograd.grad(loss, (x, W), allow_unused=True)]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_match_eager(name: str, trains: bool) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    eager = used(PROGRAMS[name], trains=trains)
    for _ in range(2):
        torch.testing.assert_close(used(compiled, trains=trains), eager)
    assert thunder.cache_misses(compiled) == 1


def test_reads_of_its_methods_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x: jvp(Sine.apply, (x,), (x,)))
    torch.testing.assert_close(compiled(X)[1], X * 50)
    monkeypatch.setitem(FACTOR, "jvp", 2.0)
    torch.testing.assert_close(compiled(X)[1], X * 2)


def test_function_without_setup_context_is_refused_as_in_pytorch() -> None:
    for run in (lambda x: grad(lambda y: Old.apply(y).sum())(x), lambda x: vmap(Old.apply)(x)):
        messages = []
        for program in (run, thunder.jit(run)):
            with pytest.raises(RuntimeError, match="must override the setup_context") as caught:
                program(X)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
