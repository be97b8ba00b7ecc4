"""Symbolic integers that compute each result once must compute as PyTorch's own do."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.fx.experimental import sym_node
from torch.fx.experimental.symbolic_shapes import DimDynamic

from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv


def environment_with_sizes(*hints: int) -> tuple[TraceShapeEnv, list[Any]]:
    """Return an environment with a symbol for each hint."""
    environment = TraceShapeEnv(lambda: None)
    sizes = []
    for index, hint in enumerate(hints):
        source = NamedSource(f"n{index}")
        symbol = environment.create_symbol(hint, source, DimDynamic.DYNAMIC)
        sizes.append(environment.create_symintnode(symbol, hint=hint, source=source))
    return environment, sizes


def test_equal_results_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    added = sym_node._optimized_add

    def counting(*args: Any) -> Any:
        computed.append("add")
        return added(*args)

    monkeypatch.setattr(sym_node, "_optimized_add", counting)
    _, (a, b) = environment_with_sizes(3, 4)
    first, second = (a + b) * 2 + 1, (a + b) * 2 + 1
    assert first.node is second.node
    assert first.node.hint == 15
    assert computed == ["add", "add"]  # `a + b` and `... + 1`


def test_results_follow_equalities_that_are_decided_later() -> None:
    environment, (a, b) = environment_with_sizes(3, 3)
    difference, condition = a - b, a == b
    assert not difference.node.expr.is_number
    assert bool(condition)
    assert len(environment.guards) == 1
    assert (a - b).node.expr == difference.node.expr == 0
    assert (a == b).node.expr is sympy.true
    assert difference.node.maybe_as_int() == 0


def test_decisions_of_a_fork_do_not_affect_results_of_its_origin() -> None:
    environment, (a, b) = environment_with_sizes(3, 3)
    product = a * b
    fork = environment.fork()
    other_a, other_b = (torch.SymInt(size.node.with_shape_env(fork)) for size in (a, b))  # type: ignore[no-untyped-call]
    assert bool(other_a == other_b)
    assert (other_a * other_b).node.expr.free_symbols < product.node.expr.free_symbols
    assert (a * b).node.expr == product.node.expr
    assert (a * b).node.shape_env is environment
    assert not environment.guards


def test_floats_and_integers_have_separate_results() -> None:
    environment, (a,) = environment_with_sizes(3)
    number = environment.create_symfloatnode(sympy.Symbol("zf0"), hint=2.0)
    assert (a * 2).node.pytype is int
    assert (number * 2).node.pytype is float
    assert (a * 2.0).node.pytype is float


def test_closed_environment_keeps_no_results() -> None:
    environment, (a,) = environment_with_sizes(3)
    _ = a * 2
    environment.close()
    assert not environment.computed.results
    assert (a * 2).node.hint == 6
