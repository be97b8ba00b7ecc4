"""Derivatives of `scan` and `map`, which are scans in reverse order, compared with loops in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, vmap
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_slices
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.passes.transforms.autocast import Autocast

# Eager PyTorch compiles the functions that are passed to these operators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.linspace(-1.0, 1.5, 12).view(4, 3)
W = torch.tensor([[0.5, -1.0, 0.25], [1.0, 0.5, -0.5], [0.0, 1.0, 1.5]], requires_grad=True)
COUNT = torch.zeros((), dtype=torch.int64)
Scan = Callable[..., Any]
Map = Callable[..., Any]


def scan_in_python(combine: Callable[..., Any], initial: Any, slices: Tensor, *, reverse: bool = False) -> Any:
    """Compute `scan` by a loop."""
    carry, rows = initial, []
    for row in reversed(slices.unbind()) if reverse else slices.unbind():
        carry, results = combine(carry, row)
        rows.append(results)
    rows = rows[::-1] if reverse else rows
    stacked = [torch.stack(column) for column in zip(*map(tree_leaves, rows), strict=True)]
    return carry, stacked if isinstance(rows[0], tuple) else stacked[0]


def map_in_python(function: Callable[..., Any], slices: Tensor, *operands: Any) -> Tensor:
    """Compute `map` by a loop."""
    return torch.stack([function(row, *operands) for row in slices.unbind()])


def recurrent(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: (torch.tanh(c @ W + y), c * y), x[0] * 0.5, x)


def backwards(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: (torch.tanh(c @ W + y), c * y), x[0] * 0.5, x, reverse=True)


def linear(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: (c + y, c * 1), torch.zeros(3), x)


def carries_alone(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: (c * 2, y * 1), x[0] * 1, x)[0]


def counted(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    def combine(carry: tuple[Tensor, Tensor], y: Tensor) -> Any:
        return (carry[0] * y + W.sum(), carry[1] + 1), (carry[0].sin() * carry[1], y * 2, carry[1] * 1)

    return scan(combine, (x[0] * 1, COUNT * 1), x)


def written(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: (c.clone().mul_(y).add_(1), c * y), x[0] * 1, x)


def mapped(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    total = x.sum(0)
    return map(lambda y, w: (y @ W).sin() * total + w.sum(), x, W * 2)


def mapped_linear(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return map(lambda y: y + W[0].detach(), x)


def mapped_branches(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return map(lambda y: torch.cond(y.sum() > 0, lambda y: y @ W, lambda y: y.sin(), (y,)), x)


def scanned_within_map(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    inner = lambda rows: scan(lambda c, y: (c * y + W.sum(), c * 1), rows[0] * 1, rows)[0]  # noqa: E731
    return map(inner, (x * W.sum()).view(2, 2, 3))


PROGRAMS = (recurrent, backwards, linear, carries_alone, counted, written)
PROGRAMS += (mapped, mapped_linear, mapped_branches, scanned_within_map)


def outcome(run: Callable[[Tensor], Any], values: Tensor) -> list[Tensor]:
    """Return the results of a program, and the gradients for a cotangent of each differentiable result."""
    x = values.clone().requires_grad_()
    results = tree_leaves(run(x))
    weighed = (
        result * torch.arange(1.0, result.numel() + 1).view(result.shape) for result in results if result.requires_grad
    )
    total = torch.stack([item.sin().sum() for item in weighed]).sum()
    return [*results, *torch.autograd.grad(total, [x, W], allow_unused=True, materialize_grads=True)]


def operators(program: Callable[..., Any]) -> Callable[[Tensor], Any]:
    return lambda x: program(x, scan, map_slices)


def loops(program: Callable[..., Any]) -> Callable[[Tensor], Any]:
    return lambda x: program(x, scan_in_python, map_in_python)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda function: function.__name__)
def test_gradients_match_a_loop(program: Callable[..., Any], cache: Any) -> None:
    compiled = thunder.jit(operators(program), cache=cache)
    for values in (X, -X, X * 0.3 + 1):
        torch.testing.assert_close(outcome(compiled, values), outcome(loops(program), values))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


@pytest.mark.parametrize("program", [recurrent, mapped], ids=lambda function: function.__name__)
def test_lengths_are_symbols(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(operators(program), cache="symbolic values")
    lengths = (3, 3, 3) if program is mapped else (4, 2, 7)  # `mapped` also takes W
    for length in lengths:
        values = torch.linspace(-1.0, 1.0, length * 3).view(length, 3)
        torch.testing.assert_close(outcome(compiled, values), outcome(loops(program), values))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)], ids=str)
def test_some_results_without_cotangents_match_a_loop(places: Sequence[int]) -> None:
    compiled = thunder.jit(operators(recurrent))
    gradients = []
    for run in (compiled, loops(recurrent)):
        x = X.clone().requires_grad_()
        results = run(x)
        total = torch.stack([results[place].cos().sum() for place in places]).sum()
        gradients.append(torch.autograd.grad(total, [x, W], allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(*gradients)


def test_backward_of_a_scan_is_a_scan_and_of_a_map_needs_no_stacks() -> None:
    names = []
    for program in (recurrent, mapped_branches):
        compiled = thunder.jit(operators(program))
        outcome(compiled, X)
        forward, backward = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
        calls = [
            next(bsym for bsym in trace.bound_symbols if bsym.functions) for trace in (forward, backward)
        ]  # fmt: skip
        names.append([(call.symbol.short_name, len(call.output)) for call in calls])
    # The third result of the forward is the stack of carries; the backward returns gradients of the carry, W and x.
    assert names == [[("scan", 3), ("scan", 3)], [("map_slices", 1), ("scan", 2)]]


def test_second_derivatives_match_a_loop() -> None:
    def second(run: Callable[[Tensor], Any]) -> tuple[Tensor, ...]:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(run(x)[0].sin().sum(), [x], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, W])

    torch.testing.assert_close(second(thunder.jit(operators(recurrent))), second(loops(recurrent)))


def recurrent_operator(x: Tensor) -> Any:
    return recurrent(x, scan, map_slices)


def test_an_artifact_has_the_backward(tmp_path: Path) -> None:
    compiled = thunder.jit(recurrent_operator)
    outcome(compiled, X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), recurrent_operator, strict=True)
    torch.testing.assert_close(outcome(loaded, -X), outcome(loops(recurrent), -X))


def test_batches_of_scans_are_differentiated() -> None:
    batched = lambda program: lambda x: vmap(program)(x.view(2, 2, 3))  # noqa: E731
    compiled = thunder.jit(batched(operators(recurrent)))
    expected = outcome(lambda x: [torch.stack(rows) for rows in zip(*map(loops(recurrent), x.view(2, 2, 3)))], X)  # noqa: B905
    torch.testing.assert_close(outcome(compiled, X), expected)
    assert thunder.last_backward_reason(compiled) == ""


def test_autocast_computes_the_functions_in_bfloat16() -> None:
    compiled = thunder.jit(operators(recurrent), transforms=[Autocast(torch.bfloat16)])
    torch.testing.assert_close(outcome(compiled, X), outcome(loops(recurrent), X), rtol=0.1, atol=0.3)
    assert thunder.last_backward_reason(compiled) == ""


def cast_weights(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    """Autocast's cache of cast weights is used separately within a function and outside of it."""
    before = x @ W
    chosen = torch.cond(x.sum() > 0, lambda x: x @ W, lambda x: (x * 2) @ W, (x,))
    return before, chosen, map(lambda y: y @ W, x), (x * 3) @ W


def cast_carries(x: Tensor, scan: Scan, map: Map) -> Any:  # noqa: A002
    return scan(lambda c, y: ((c @ W + y).float(), (c @ W) * y), x[0] * 0.5, x)


@pytest.mark.parametrize(
    "program", [cast_weights, cast_carries, mapped, scanned_within_map], ids=lambda function: function.__name__
)
def test_programs_under_autocast_have_separate_backwards(program: Callable[..., Any]) -> None:
    def under_autocast(run: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def inner(x: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return [result.float() for result in tree_leaves(run(x))]

        return inner

    compiled = thunder.jit(under_autocast(operators(program)))
    for values in (X, -X):
        expected = outcome(under_autocast(loops(program)), values)
        torch.testing.assert_close(outcome(compiled, values), expected, rtol=0.03, atol=0.03)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def test_scan_with_random_numbers_is_recorded_by_autograd() -> None:
    def program(x: Tensor) -> Any:
        return map_slices(lambda y: y * torch.rand(3), x)

    compiled = thunder.jit(program)
    outcome(compiled, X)
    assert "draws random numbers" in thunder.last_backward_reason(compiled)


def test_initial_carry_may_be_written_to_afterwards() -> None:
    def program(x: Tensor, scan: Scan) -> Tensor:
        first = x[0] * 0.5
        last, rows = scan(lambda c, y: (c * y + y, c * y), first, x)
        first.add_(5)
        return last.sum() + rows.square().sum() + first.sum()

    def in_python(combine: Callable[..., Any], initial: Tensor, slices: Tensor) -> Any:
        return scan_in_python(combine, initial.clone(), slices)

    gradients = []
    for run in (thunder.jit(lambda x: program(x, scan)), lambda x: program(x, in_python)):
        x = X.clone().requires_grad_()
        gradients.append(torch.autograd.grad(run(x), x))
    torch.testing.assert_close(*gradients)
