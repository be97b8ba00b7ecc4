"""Derivatives of `torch.cond`, whose backward is also a branch, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

# Eager PyTorch compiles the functions that are passed to these operators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
W = torch.tensor([[2.0, 3.0], [4.0, 1.0], [0.5, 1.0]], requires_grad=True)
ROWS = torch.tensor([1, 0])


def views(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: x.t() + 1, lambda x: x.t() - x.sum(), (x,))
    return result.sin()


def shared_gradients(x: Tensor) -> Tensor:
    y = x * 2
    result: Tensor = torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, (x, y))
    return result.cos() * y


def several_results(x: Tensor) -> Tensor:
    one, other, count = torch.cond(
        x.sum() > 0,
        lambda x: (x @ W, x.detach() * 2, (x > 0).sum()),
        lambda x: ((x @ W).exp(), x * 3, (x < 0).sum()),
        (x,),
    )
    return one.sum() * count + other.prod()


def integers(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x, rows: x[rows] * x, lambda x, rows: x * rows[:, None], (x, ROWS))
    return result


def partly_off(x: Tensor) -> Tensor:
    def scaled(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale

    result: Tensor = torch.cond(x.sum() > 0, scaled, lambda x: x * 2, (x,))
    return result


def written_inside(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: x.clone().mul_(x).add_(1), lambda x: x * 2, (x,))
    return result * x


def nested(x: Tensor) -> Tensor:
    inner = lambda x: torch.cond(x[0, 0] > 0.7, lambda x: x * x, lambda x: x.exp() @ W @ W.t(), (x,))  # noqa: E731
    result: Tensor = torch.cond(x.sum() > 0, lambda x: inner(x) * x, lambda x: inner(-x), (x,))
    return result


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    views,
    shared_gradients,
    integers,
    partly_off,
    written_inside,
    nested,
]


def gradients(run: Callable[[Tensor], Tensor], values: Tensor) -> list[Any]:
    x = values.clone().requires_grad_()
    return list(torch.autograd.grad(run(x).sum(), [x, W], allow_unused=True))


CALLS = [*((program, "constant values") for program in PROGRAMS), (views, "symbolic values")]


@pytest.mark.parametrize(("program", "cache"), CALLS)
def test_gradients_of_each_branch_match_eager(program: Callable[[Tensor], Tensor], cache: Any) -> None:
    compiled = thunder.jit(program, cache=cache)
    for values in (X, -X, X / 2):
        torch.testing.assert_close(gradients(compiled, values), gradients(program, values))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def test_results_that_are_integers_or_detached_have_no_gradients() -> None:
    compiled = thunder.jit(several_results)  # eager PyTorch fails if a branch returns integers
    branches = (
        (X, lambda x: (x @ W).sum() * (x > 0).sum() + (x.detach() * 2).prod()),
        (-X, lambda x: (x @ W).exp().sum() * (x < 0).sum() + (x * 3).prod()),
    )
    for values, plain in branches:
        torch.testing.assert_close(gradients(compiled, values), gradients(plain, values))
    assert thunder.last_backward_reason(compiled) == ""


def test_the_backward_is_a_branch_on_the_same_predicate() -> None:
    compiled = thunder.jit(shared_gradients)
    gradients(compiled, X)
    forward, backward = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    before, after = (
        next(bsym for bsym in trace.bound_symbols if bsym.symbol.short_name == "cond") for trace in (forward, backward)
    )
    assert after.args[0].name == before.args[0].name
    assert [item.name for item in after.functions] == [f"{entry.name}_backward" for entry in before.functions]
    assert len(after.args[3]) == 1  # only the gradient of the result is an input: the backward reads no operand


def test_sizes_are_symbols_in_the_backward() -> None:
    def program(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, lambda x: x.mean(0) + x[0], lambda x: (x * x.shape[0]).sum(0), (x,))
        return result

    compiled = thunder.jit(program, cache="symbolic values")
    for length in (2, 3, 7):
        for values in (torch.ones(length, 3), -torch.ones(length, 3)):
            torch.testing.assert_close(gradients(compiled, values)[0], gradients(program, values)[0])
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def test_an_artifact_has_the_backward(tmp_path: Path) -> None:
    compiled = thunder.jit(nested)
    gradients(compiled, X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), nested, strict=True)
    for values in (X, -X):
        torch.testing.assert_close(gradients(loaded, values), gradients(nested, values))


def test_gradients_of_gradients_match_eager() -> None:
    def second(run: Callable[[Tensor], Tensor]) -> Tensor:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(run(x).sum(), [x], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x])[0]

    plain = lambda x: (x.exp() * x).cos() * x  # noqa: E731 - the branch itself: eager's cond has no second derivative
    compiled = thunder.jit(lambda x: torch.cond(x.sum() > 0, lambda x: (x.exp() * x).cos(), torch.sin, (x,)) * x)
    torch.testing.assert_close(second(compiled), second(plain))


def test_autograd_records_a_branch_with_random_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x * 2, (x,))
        return result

    compiled = thunder.jit(program)
    x = torch.ones(64, requires_grad=True)
    result = compiled(x)
    (gradient,) = torch.autograd.grad(result.sum(), [x])
    torch.testing.assert_close(gradient, result.detach())  # with the same dropout mask
    assert 0 < (gradient == 0).sum() < 64
    assert "draws random numbers" in thunder.last_backward_reason(compiled)


def test_gradients_under_autocast_come_from_the_taken_branch() -> None:
    compiled = thunder.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x @ W, lambda x: x @ W * 2, (x,)).float())
    for values, scale in ((X, 1), (-X, 2)):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = gradients(compiled, values), gradients(lambda x, s=scale: (x @ W * s).float(), values)
        torch.testing.assert_close(found, expected)
