"""The functions of branches and loops are claimed like the program: single operations and whole regions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from thunder_core.backend.claiming.claim import claims_by_executor

# Eager PyTorch compiles the functions that are passed to these operators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.linspace(-1.0, 1.5, 12).view(4, 3)


def branches(x: Tensor) -> Any:
    def one(x: Tensor) -> Tensor:
        return (x.sin() * x.shape[0] + x.exp()).tanh()

    return torch.cond(x.sum() > 0, one, lambda x: (x.cos() * x).relu() + 1, (x,))


def recurrence(x: Tensor) -> Any:
    return scan(lambda c, y: ((c.tanh() * y + 1).sigmoid(), (c * y).sin() + y.exp()), x[0] * 0.5, x)


def loop(x: Tensor) -> Any:
    turns = torch.zeros((), dtype=torch.int64)
    return torch.while_loop(lambda i, c: (i < 3) & (c.sum() < 9), lambda i, c: (i + 1, c.sin() * 2 + c), (turns, x * 1))


def nested(x: Tensor) -> Any:
    inner = lambda c, y: torch.cond(y.sum() > 0, lambda: (c * y).sin() + 1, lambda: (c + y).cos() * 2)  # noqa: E731
    return scan(lambda c, y: (inner(c, y).exp() * 0.1 + c, inner(c, y) * 3 + y), x[0] * 0.5, x)


PROGRAMS = (branches, recurrence, loop, nested)


def regions(trace: Any) -> list[int]:
    """Return the number of operations of each region inside functions."""
    found = [len(bsym.subsymbols) for bsym in trace.bound_symbols if bsym.executor in {"replays", "inductor"}]
    return [*found, *(count for bsym in trace.bound_symbols for body in bsym.functions for count in regions(body))]


def within(final: Any) -> list[int]:
    """Return the same for the functions only."""
    return [count for bsym in final.bound_symbols for body in bsym.functions for count in regions(body)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda function: function.__name__)
def test_regions_are_fused_within_functions(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    for values in (X, -X):
        torch.testing.assert_close(tree_leaves(compiled(values)), tree_leaves(program(values)))
    assert thunder.cache_misses(compiled) == 1
    final = thunder.last_traces(compiled)[-1]
    assert sum(within(final)) >= 6
    assert claims_by_executor(final)["replays"] == sum(regions(final))


def gradients(run: Callable[[Tensor], Any], length: int) -> tuple[Tensor, ...]:
    x = torch.linspace(-1.0, 1.5, length * 3).view(length, 3).requires_grad_()
    return torch.autograd.grad(torch.stack([result.sum() for result in tree_leaves(run(x))]).sum(), x)


@pytest.mark.parametrize("program", [branches, recurrence, nested], ids=lambda function: function.__name__)
def test_regions_are_fused_within_functions_of_backwards(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    torch.testing.assert_close(gradients(compiled, 4), gradients(program, 4))
    assert thunder.last_backward_reason(compiled) == ""
    assert sum(within(thunder.last_backward_traces(compiled)[-1])) >= 6


@pytest.mark.parametrize("program", [branches, recurrence], ids=lambda function: function.__name__)
def test_sizes_that_inner_regions_read_are_operands(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=("inductor", "torch"), cache="symbolic values")
    for length in (4, 2, 7):
        torch.testing.assert_close(gradients(compiled, length), gradients(program, length))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""
    assert all(within(traces[-1]) for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled)))


def test_artifact_keeps_the_kernels_of_inner_regions(tmp_path: Path) -> None:
    compiled = thunder.jit(recurrence, executors=("inductor", "torch"))
    compiled(X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), recurrence, strict=True)
    torch.testing.assert_close(tree_leaves(loaded(-X)), tree_leaves(recurrence(-X)))
    body = next(body for bsym in thunder.last_traces(compiled)[-1].bound_symbols for body in bsym.functions)
    assert [bsym.executor for bsym in body.bound_symbols] == ["inductor"]


def test_operations_that_autograd_records_from_the_second_turn_on_are_not_fused() -> None:
    """The carry requires a gradient after the first turn, but not before it."""
    weight = torch.linspace(0.5, 1.5, 3, requires_grad=True)

    def turned(c: Tensor) -> Tensor:
        return (c.sin() * 2 + c.cos()).tanh() + weight

    def looped(x: Tensor) -> Tensor:
        turns = torch.zeros((), dtype=torch.int64)
        result: Tensor = torch.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, turned(c)), (turns, x * 1))[1]
        return result

    def scanned(x: Tensor) -> Tensor:  # autograd records the loop, because it generates random numbers
        result: Tensor = scan(lambda c, y: (turned(c) * y, c * torch.rand(3)), x * 1, torch.ones(3, 3))[0]
        return result

    expected = X[0]
    for _ in range(3):
        expected = turned(expected)
    for program in (looped, scanned):
        compiled = thunder.jit(program, executors=(Replays(), "torch"))
        gradients = [torch.autograd.grad(item.sum(), weight, retain_graph=True) for item in (compiled(X[0]), expected)]
        torch.testing.assert_close(*gradients)
        assert thunder.last_backward_reason(compiled)
