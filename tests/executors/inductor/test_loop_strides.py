"""Strides of loop indices equal those that Inductor finds by SymPy's general rules."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from thunder_executors.inductor.loop_strides import OWNER, expanded_strides, is_polynomial

ROW, COLUMN = sympy.symbols("x0 x1", integer=True, nonnegative=True)
SIZE, OTHER = sympy.symbols("s0 s1", integer=True, positive=True)
POLYNOMIALS = (
    512 * ROW + COLUMN,
    SIZE * (ROW + 3 * COLUMN) - COLUMN,
    (SIZE + 1) * (OTHER - 1) * COLUMN + ROW * SIZE**2,
    ROW + SIZE * (COLUMN + 1) - SIZE * COLUMN,
    ROW**2 * COLUMN + 7,
    SIZE + 3,
    sympy.Integer(4),
)
QUOTIENTS = (
    FloorDiv(COLUMN, 16) * SIZE + ROW,
    ModularIndexing(COLUMN, 1, 64) + 64 * FloorDiv(ROW, SIZE),
    ModularIndexing(ROW + COLUMN, SIZE, 8) + COLUMN,
)


@pytest.mark.parametrize("length", [None, 16])
@pytest.mark.parametrize("index", [*POLYNOMIALS, *QUOTIENTS], ids=str)
def test_a_stride_matches_the_general_rules(index: sympy.Expr, length: int | None) -> None:
    assert is_polynomial(index) == (index in POLYNOMIALS)
    for variable in (ROW, COLUMN):
        OWNER.stride_at_vec_range.cache_clear()
        expected = OWNER.stride_at_vec_range(index, variable, length)
        OWNER.stride_at_vec_range.cache_clear()
        with expanded_strides():
            found = OWNER.stride_at_vec_range(index, variable, length)
        assert sympy.simplify(found - expected) == 0
        assert found.is_number == expected.is_number
        assert (found == 1, found == 0) == (expected == 1, expected == 0)


def test_general_rules_are_not_used_for_polynomials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sympy, "simplify", None)
    with expanded_strides():
        for index in POLYNOMIALS:
            OWNER.stride_at_vec_range.cache_clear()
            OWNER.stride_at_vec_range(index, COLUMN, 16)


def test_powers_by_symbols_and_other_numbers_are_no_polynomials() -> None:
    assert not any(map(is_polynomial, (2**SIZE, 1 / SIZE, COLUMN / 2, sympy.sqrt(COLUMN), sympy.Max(SIZE, COLUMN))))
