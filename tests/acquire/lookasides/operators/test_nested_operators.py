"""Operators and transforms that take functions, nested in one another, compared with the same programs in Python.

Each program is trained, with symbolic sizes too, and as an artifact. The functions close over tensors and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, vmap
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from tests.acquire.lookasides.operators.python_operators import IN_PYTHON, PYTORCHS, Operators

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.linspace(-1.0, 2.0, 12).view(4, 3)
LONGER = torch.linspace(1.0, -1.5, 15).view(5, 3)
W = torch.tensor([0.5, -1.0, 1.5], requires_grad=True)
V = torch.tensor([0.5, -1.0, 1.5])
Z = torch.zeros(3)
COUNT = torch.zeros((), dtype=torch.int64)
QUERY = torch.linspace(-1.0, 1.0, 64).view(1, 2, 4, 8).sin()
SCALE = {"by": 2.0}


class Layer(nn.Module):
    """A module that is the function of an operator, and whose method is the function of another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * SCALE["by"]

    def step(self, carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(carry * SCALE["by"] + self.linear(row)), carry * row


LAYER = Layer()


class Doubled(torch.autograd.Function):
    """The exponential, with a custom derivative that is twice as large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 * ctx.saved_tensors[0] * SCALE["by"]


@torch.library.custom_op("thunder_tests::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x * 3


@tripled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


tripled.register_autograd(lambda ctx, gradient: gradient * 3)


def scaled(x: Tensor) -> Tensor:
    return (x * W).sin() * SCALE["by"]


def total(x: Tensor) -> Tensor:
    return scaled(x).sum()


def twice(o: Operators, x: Tensor) -> Tensor:
    """Run a loop of two turns, which no gradient passes."""
    with torch.no_grad():
        result: Tensor = o.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, y * V * SCALE["by"]), (COUNT * 1, x * 1)
        )[1]
    return result


def scan_in_while_loop(o: Operators, x: Tensor) -> Tensor:
    body = lambda i, y: (i + 1, o.scan(lambda c, row: (c + row, c * row * V), Z, y)[1])  # noqa: E731
    result: Tensor = o.while_loop(lambda i, y: i < 2, body, (COUNT * 1, x.detach() * 1))[1]
    return result * x


def biased(scores: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return scores * SCALE["by"] + V[j % 3]


def attention(o: Operators, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = o.flex_attention(QUERY * x.sum(), QUERY, QUERY, biased)
    return result


def tuple_of(x: Tensor, times: float, *, plus: Tensor) -> tuple[Tensor, Tensor]:
    return x * times + plus, x.sum()


def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(carry * W + row), carry * row * SCALE["by"]


def recurrence(left: Any, right: Any) -> Any:
    return {"a": left["a"] * right["a"], "b": right["a"] * left["b"] + right["b"]}


def counts(carry: tuple[Tensor, Tensor], row: dict[str, Tensor]) -> Any:
    return (carry[0] + row["x"], carry[1] + 1), {"sum": carry[0] * W, "flags": (row["y"] > 0, carry[1] * 2)}


def per_model(o: Operators, x: Tensor) -> Tensor:
    parameters, buffers = stack_module_state([LAYER, LAYER])
    call = lambda p, b: o.map(lambda row: functional_call(LAYER, (p, b), (row,)), x)  # noqa: E731
    result: Tensor = vmap(call)(parameters, buffers)
    return result


def per_sample(o: Operators, x: Tensor) -> Any:
    loss = lambda p, row: functional_call(LAYER, p, (row,)).square().sum()  # noqa: E731
    return o.checkpoint(lambda x: vmap(grad(loss), (None, 0))(dict(LAYER.named_parameters()), x), x)


def of_slices(transform: Callable[[Tensor], Any]) -> Callable[[Operators, Tensor], Any]:
    """Apply a transform within `map`, within a branch."""
    return lambda o, x: o.cond(x.sum() > 0, lambda x: o.map(transform, x), lambda x: o.map(transform, x * 2), (x,))


PROGRAMS: dict[str, Callable[[Operators, Tensor], Any]] = {
    "cond of partials": lambda o, x: o.cond(
        x.sum() > 0, partial(tuple_of, times=2.0, plus=W), partial(tuple_of, times=3.0, plus=x * 2), (x,)
    ),
    "cond of modules": lambda o, x: o.cond(x.sum() > 0, LAYER, LAYER.linear, (x,)),
    "cond in cond": lambda o, x: o.cond(
        x.sum() > 0, lambda x: o.cond(x[0, 0] < 0, scaled, torch.cos, (x,)) * W, lambda x: x * SCALE["by"], (x,)
    ),
    "cond in scan in vmap": lambda o, x: o.vmap(
        lambda row: o.scan(lambda c, y: (o.cond(y > 0, torch.add, torch.mul, (c, y)), c * W.sum()), Z[0], row)[1]
    )(x),
    "cond in region": lambda o, x: o.region(lambda x: o.cond(x.sum() > 0, scaled, torch.cos, (x,)))(x),
    "cond in checkpoint": lambda o, x: o.checkpoint(lambda x: o.cond(x.sum() > 0, scaled, torch.cos, (x,)).exp(), x),
    "while_loop in cond": lambda o, x: o.cond(x.sum() > 0, lambda x: twice(o, x) * x, lambda x: x * W, (x,)),
    "while_loop in scan": lambda o, x: o.scan(lambda c, y: (c + twice(o, y) * y, c * W), Z, x),
    "while_loop of a number in map": lambda o, x: o.map(
        lambda y: o.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * W * SCALE["by"]), (0, y))[1], x
    ),
    "scan in scan": lambda o, x: o.scan(
        lambda c, y: (o.scan(lambda a, b: (a * 0.5 + b, a * b), c.sum(), y)[0] * W, c * SCALE["by"]), Z, x
    ),
    "scan in while_loop": scan_in_while_loop,
    "scan of trees": lambda o, x: o.scan(counts, (Z, COUNT), {"x": x, "y": x * 2}),
    "scan along another dimension": lambda o, x: o.scan(
        lambda c, y: (c * 0.5 + y, c * y * SCALE["by"]), x[:, 0] * 1, x * W, dim=1, reverse=True
    ),
    "scan of a method": lambda o, x: o.scan(LAYER.step, Z, x),
    "scan of views": lambda o, x: o.scan(
        lambda c, y: ((c.view(3, 1) + y[:, None]).view(3), (c * W).view(3, 1)[:2]), Z, x
    ),
    "scan of other dtypes": lambda o, x: o.scan(lambda c, y: (c + y.double(), (c > 0, c.float() * W)), Z.double(), x),
    "map in map": lambda o, x: o.map(lambda y: o.map(lambda z: z * W.sum() * SCALE["by"], y), x),
    "map in checkpoint": lambda o, x: o.checkpoint(lambda x: o.map(scaled, x).exp(), x),
    "map of a module": lambda o, x: o.map(LAYER, x),
    "map of trees": lambda o, x: o.map(
        lambda d, w: {"a": d["a"] * w, "b": (d["b"][0].sum(), None)}, {"a": x, "b": (x.sin(),)}, W * 1
    ),
    "checkpoint in map": lambda o, x: o.map(lambda y: o.checkpoint(scaled, y), x),
    "checkpoint in scan": lambda o, x: o.scan(lambda c, y: o.checkpoint(step, c, y), Z, x),
    "checkpoint in checkpoint": lambda o, x: o.checkpoint(lambda x: o.checkpoint(scaled, x).exp() * x, x),
    "associative_scan of trees": lambda o, x: o.associative_scan(
        recurrence, {"a": x * W, "b": x * SCALE["by"]}, 0, combine_mode="generic"
    ),
    "associative_scan of an operator": lambda o, x: o.associative_scan(
        torch.ops.aten.add.Tensor, x * W, 0, combine_mode="generic"
    ),
    "associative_scan in cond": lambda o, x: o.cond(
        x.sum() > 0,
        lambda x: o.associative_scan(torch.mul, x * W, 0, reverse=True, combine_mode="generic"),
        lambda x: x * SCALE["by"],
        (x,),
    ),
    "associative_scan of associative_scan": lambda o, x: o.associative_scan(
        torch.add, o.associative_scan(torch.mul, x * W, 0, combine_mode="generic"), 1, combine_mode="generic"
    ),
    "flex_attention in cond": lambda o, x: o.cond(
        x.sum() > 0, lambda x: attention(o, x) * x.sum(), lambda x: QUERY * x.sum(), (x,)
    ),
    "flex_attention in scan": lambda o, x: o.scan(lambda c, y: (c + y * W, attention(o, y)), Z, x),
    "flex_attention in flex_attention": lambda o, x: attention(o, attention(o, x) * V.sum()),
    "Function in cond": lambda o, x: o.cond(x.sum() > 0, Doubled.apply, scaled, (x,)),
    "Function in scan": lambda o, x: o.scan(lambda c, y: (c + Doubled.apply(y * W), c * 1), Z, x),
    "Function in map": lambda o, x: o.map(lambda y: Doubled.apply(y) * W, x),
    "Function in checkpoint": lambda o, x: o.checkpoint(lambda x: Doubled.apply(Doubled.apply(x * W)), x),
    "custom_op in cond": lambda o, x: o.cond(x.sum() > 0, lambda x: tripled(x) * W, lambda x: tripled(x * 2), (x,)),
    "custom_op in scan": lambda o, x: o.scan(lambda c, y: (c + tripled(y * W), tripled(c)), Z, x),
    "custom_op in checkpoint": lambda o, x: o.checkpoint(lambda x: tripled(x * W).sin(), x),
    "region in region": lambda o, x: o.region(lambda x: o.region(scaled)(x) * x)(x),
    "region in scan": lambda o, x: o.scan(lambda c, y: (c + o.region(lambda y: scaled(y))(y), c * 1), Z, x),
    "region in vmap of grad": lambda o, x: vmap(grad(lambda y: o.region(scaled)(y).sum()))(x),
    "vmap in cond": lambda o, x: o.cond(x.sum() > 0, vmap(scaled), vmap(torch.sin), (x,)),
    "vmap in vmap in map": lambda o, x: o.map(lambda y: vmap(lambda a: vmap(lambda b: a * b * W.sum())(y))(y), x),
    "grad in scan": lambda o, x: o.scan(lambda c, y: (c + grad(total)(y), c * 1), Z, x),
    "grad_and_value": of_slices(grad_and_value(total)),
    "vjp": of_slices(lambda y: vjp(scaled, y)[1](y)[0]),
    "jvp": of_slices(lambda y: jvp(scaled, (y,), (y,))[1]),
    "jacrev": of_slices(jacrev(scaled)),
    "jacfwd": of_slices(jacfwd(scaled)),
    "hessian": of_slices(hessian(total)),
    "linearize": lambda o, x: o.cond(x.sum() > 0, lambda x: o.linearize(torch.sin, x * 1)[1](x * W), scaled, (x,)),
    "jacfwd of jacrev": of_slices(lambda y: jacfwd(jacrev(scaled))(y).sum(0)),
    "functional_call in scan": lambda o, x: o.scan(
        lambda c, y: (c + functional_call(LAYER, {"linear.bias": W * SCALE["by"]}, (y,)), c * 1), Z, x
    ),
    "functional_call in checkpoint": per_sample,
    "stack_module_state with map": per_model,
}  # fmt: skip


def trained(run: Callable[[Tensor], Any], values: Tensor) -> tuple[Any, list[Tensor]]:
    """Return the results of a program, and the gradients for a cotangent of each differentiable result."""
    x = values.clone().requires_grad_()
    results = run(x)
    followed = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
    loss = sum((leaf * (leaf.detach() + 0.5)).sum() for leaf in followed)
    inputs = [x, W, *LAYER.parameters()]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True) if followed else ()
    return results, list(gradients)


@pytest.mark.sample(50)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_match_python(name: str, cache: Any) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(lambda x: program(PYTORCHS, x), cache=cache)
    for x in (X, -X) if cache == "constant values" else (X, LONGER):
        torch.testing.assert_close(trained(compiled, x), trained(lambda x: program(IN_PYTHON, x), x))


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", PROGRAMS)
def test_artifacts_hold_nested_operators(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    subject = lambda x: program(PYTORCHS, x)  # noqa: E731
    compiled = thunder.jit(subject)
    expected = trained(compiled, X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), subject, strict=True)
    torch.testing.assert_close(trained(loaded, X), expected)
