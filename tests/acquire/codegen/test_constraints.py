"""Constraints are merged, and printed as Python expressions."""

from __future__ import annotations

import pytest
import sympy
import torch

import thunder_core as thunder
from thunder_core.frontend.acquire.codegen.constraints import Constraint, with_equalities, with_positive_terms
from thunder_core.tracing.ir.sizes import text_of

a, b = sympy.symbols("a b", integer=True, positive=True)
number = sympy.Symbol("number", real=True)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (sympy.Le(a - b, 0), "a <= b"),
        (sympy.Ge(a - b, 0), "b <= a"),
        (sympy.Gt(2 * a - 3 * b + 4, 0), "3*b < 4 + 2*a"),
        (sympy.Eq(a * b - b, 0), "(a*b) == b"),
        (sympy.Ge(a * b, 10), "10 <= a*b"),
    ],
)
def test_relations_of_integers_are_written_without_subtractions(condition: sympy.Basic, text: str) -> None:
    assert text_of(with_positive_terms(condition)) == text


def test_relations_with_floats_are_not_rewritten() -> None:
    condition = sympy.Le(number - a, 0)
    assert with_positive_terms(condition) is condition


def test_two_bounds_are_an_equality() -> None:
    conditions = (sympy.Le(a, b, evaluate=False), sympy.Le(a * b, 9), sympy.Le(b, a, evaluate=False))
    merged = with_equalities({text_of(item): Constraint(item, None) for item in conditions})
    assert list(merged) == ["a*b <= 9", "a == b"]


def test_prologue_checks_equal_sizes_by_an_equality() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= y.shape[0] and y.shape[0] <= x.shape[0]:
            return x.sum() + y.sum()
        return x.sum()

    compiled = thunder.jit(program, cache="symbolic values")
    for sizes in ((4, 4), (7, 7), (4, 6)):
        x, y = (torch.ones(size) for size in sizes)
        assert torch.equal(compiled(x, y), program(x, y))
    assert thunder.cache_misses(compiled) == 2
    assert "s0 == s1" in thunder.recompile_reasons(compiled)[0]
