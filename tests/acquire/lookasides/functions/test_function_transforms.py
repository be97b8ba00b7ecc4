"""Transforms of torch.func inside a compiled program: results, gradients, guards and errors match eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional

import thunder_core as thunder

# PyTorch compiles its own decompositions at their first use.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

X = torch.tensor([0.5, 1.0, 2.0])
W = torch.linspace(0.5, 2.0, 3, requires_grad=True)


def silently(x: Tensor) -> Tensor:
    with torch.no_grad():
        constant = x**2
    return (x * constant).sum()


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        constants = grad(silently)(x) + grad(lambda y: (y * W).sin().sum())(x)
    return constants * x + grad(silently)(x)


def in_place(x: Tensor) -> Tensor:
    result = torch.zeros(3)
    result[1:] = x[1:] * W[1:]
    result.mul_(x)
    return result.sum()


def cotangents(x: Tensor) -> Any:
    results, back = vjp(lambda y, z: {"a": y * z, "b": (y @ z, z.cos())}, x, W)
    return (
        results["a"],
        back({"a": x, "b": (x.sum(), x)}),
        vmap(lambda c: back({"a": c, "b": (c.sum(), c)}))(torch.eye(3)),
    )


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(lambda y: (y.sin() * W).sum())(x),
    "grad of a captured one": lambda x: grad(lambda y: (y * x).sum())(W),
    "grad_and_value": lambda x: grad_and_value(lambda y: ((y.sin() * x).sum(), y * 2), has_aux=True)(x),
    "argnums": lambda x: grad(lambda y, z: (y * z["w"].exp()).sum(), argnums=(1, 0))(x, {"w": W}),
    "no_grad": under_no_grad,
    "in place": lambda x: grad(in_place)(x),
    "value": lambda x: grad(lambda y: (y.sin() if y.shape[0] == 3 else y).prod())(x),
    "grad of grad": lambda x: grad(lambda y: grad(lambda z: (z**3 * W).sum())(y).sum())(x),
    "vmap of grad": lambda x: vmap(grad(lambda y, w: (y * w).sin().sum()), in_dims=(0, None))(torch.outer(x, x), W),
    "grad of vmap": lambda x: grad(lambda y: vmap(torch.softmax, (0, None))(torch.outer(y, W), 0).sin().sum())(x),
    "vjp": cotangents,
    "jvp": lambda x: jvp(lambda y, z: ((y * z).sin(), z.sum()), (x, W), (x * 2, x.sin())),
    "jvp of jvp": lambda x: jvp(lambda y: jvp(torch.sin, (y,), (W,))[1] * y, (x,), (x,)),
    "jvp of grad": lambda x: jvp(grad(lambda y: (y.exp() * W).prod()), (x,), (x,)),
    "grad of jvp": lambda x: grad(lambda y: jvp(torch.sin, (y * W,), (y,))[1].sum())(x),
    "jacrev": lambda x: jacrev(lambda y, z: ((y * z).cumsum(0), y.outer(z)), argnums=(0, 1))(x, W),
    "jacrev in chunks": lambda x: jacrev(lambda y: y.outer(y * W), chunk_size=2)(x),
    "jacfwd": lambda x: jacfwd(lambda y: ((y * W).cumsum(0), y.norm()), has_aux=True)(x),
    "hessian": lambda x: hessian(lambda y: (y * W).sin().prod())(x),
    "hessian by vmap": lambda x: vmap(hessian(lambda y: (y * W).sin().sum()))(torch.outer(x, x)),
    "jacrev of jacfwd": lambda x: jacrev(jacfwd(lambda y: (y * W).sin()))(x),
}


def used(run: Callable[[Tensor], Any], *, trains: bool) -> list[Any]:
    """Return all results of a program, and the gradients if it is trained."""
    x = X.clone().requires_grad_(trains)
    with torch.set_grad_enabled(trains):
        results = run(x)
    flat = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if leaf.requires_grad]
    if not trains:
        return [results]
    loss = sum((item * torch.arange(1.0, item.numel() + 1).view(item.shape)).sin().sum() for item in flat)
    return [results, *torch.autograd.grad(loss, (x, W), allow_unused=True)]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_match_eager(name: str, trains: bool) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    eager = used(PROGRAMS[name], trains=trains)
    for _ in range(2):
        torch.testing.assert_close(used(compiled, trains=trains), eager)
    assert thunder.cache_misses(compiled) == 1


def test_trace_contains_no_line_of_a_transform() -> None:
    compiled = thunder.jit(lambda x: vmap(grad(lambda y: y.sin()))(x))
    compiled(X)
    trace = thunder.last_traces(compiled)[-1]
    assert not [bsym for bsym in trace.bound_symbols if "functorch" in bsym.symbol.name]
    names = [bsym.symbol.name for bsym in thunder.last_traces(compiled)[0].bound_symbols]
    assert "torch.ops.aten.cos.default" in names


def test_reads_of_a_hook_are_guarded() -> None:
    factor = [2.0]

    def hooked(x: Tensor) -> Tensor:
        doubled = x * 2
        doubled.register_hook(lambda gradient: gradient * factor[0])
        return doubled.sum()

    compiled = thunder.jit(lambda x: grad(hooked)(x))
    for factor[0] in (2.0, 3.0):
        assert torch.equal(compiled(X), torch.full((3,), 2 * factor[0]))


RANDOM: dict[str, dict[str, Any]] = {
    "different": {"randomness": "different"},
    "same": {"randomness": "same"},
    "different, in chunks": {"randomness": "different", "chunk_size": 2},
    "same, in chunks": {"randomness": "same", "chunk_size": 2},
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_match_eager(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        return vmap(grad(lambda y: (functional.dropout(y) + torch.rand(3)).prod()), **RANDOM[name])(torch.outer(x, x))

    found = []
    for run in (program, thunder.jit(program)):
        torch.manual_seed(0)
        found.append((run(X), torch.rand(1)))
    torch.testing.assert_close(*found)


def test_side_effects_happen_once() -> None:
    seen: list[int] = []

    def counted(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return x.sin().sum()

    compiled = thunder.jit(lambda x: (grad(counted)(x), vmap(counted)(x[None]))[0])
    for _ in range(3):
        compiled(X)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_reads_of_the_function_are_guarded() -> None:
    scale, weights = [2.0], {"w": X}

    def program(x: Tensor) -> Tensor:
        return grad(lambda y: (y**2 * weights["w"] * scale[0]).sum())(x)

    def more() -> None:
        scale[0] = 3.0

    def other() -> None:
        weights["w"] = X * 2

    compiled = thunder.jit(program)
    for change in (dict, more, other):
        change()
        torch.testing.assert_close(compiled(X), program(X))


ERRORS: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "no scalar": (lambda x: grad(lambda y: y * 2)(x), RuntimeError, "to return a scalar Tensor"),
    "no tensor": (lambda x: grad(lambda y: 2.0)(x), RuntimeError, "to return a Tensor, got"),
    "an integer": (lambda x: vjp(lambda y: y.long(), x), RuntimeError, "must be floating-point or complex"),
    "no argument": (lambda x: grad(lambda y: y.sum(), argnums=1)(x), RuntimeError, "only 1 positional inputs"),
    "structures": (lambda x: jvp(torch.sin, (x,), (x, x)), RuntimeError, "the same python structure"),
    "no function": (lambda x: grad(x)(x), TypeError, "object is not callable"),
    "randomness": (
        lambda x: vmap(lambda y: y + torch.rand(3))(x),
        RuntimeError,
        "random operation while in randomness",
    ),
    "a captured tensor": (lambda x: grad(lambda y: x.mul_(y).sum())(x), RuntimeError, "would mutate a captured Tensor"),
    "the argument": (lambda x: grad(lambda y: y.mul_(2).sum())(x), RuntimeError, "leaf Variable that requires grad"),
    "sizes of batches": (lambda x: vmap(torch.add)(x, x[:2]), ValueError, "the same size in the mapped dimension"),
    "a dimension": (lambda x: vmap(torch.sin, in_dims=5)(x), ValueError, "Got in_dim=5 for some input"),
    "its own error": (lambda x: grad(lambda y: y @ torch.ones(4))(x), RuntimeError, "inconsistent tensor size|size"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_match_pytorch(name: str) -> None:
    program, kind, message = ERRORS[name]
    for run in (program, thunder.jit(program)):
        with pytest.raises(kind, match=message):
            run(X)
    assert torch._C._functorch.peek_interpreter_stack() is None
    torch.testing.assert_close(thunder.jit(PROGRAMS["jvp"])(X), PROGRAMS["jvp"](X))
