"""Strides of indices in loops, which Inductor asks for many times: of polynomials without SymPy's general rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import sympy
from torch._inductor import sizevars
from torch._inductor.codegen import cpp
from torch._inductor.utils import sympy_subs

ATOMS = (sympy.Symbol, sympy.Integer)
SUMS = (sympy.Add, sympy.Mul)

# The module of Inductor that defines both functions: `sizevars` from PyTorch 2.12 on, before that the C++ backend.
OWNER: Any = sizevars if hasattr(sizevars, "stride_at") else cpp

general_stride = OWNER.stride_at
general_index = OWNER.simplify_index_in_vec_range


@contextmanager
def expanded_strides() -> Iterator[None]:
    """While this lasts, Inductor expands what is a polynomial, which decides as much as `sympy.simplify` at a tenth."""
    with (
        mock.patch.object(OWNER, "stride_at", stride),
        mock.patch.object(OWNER, "simplify_index_in_vec_range", index_in_vectors),
    ):
        yield


@cache
def is_polynomial(index: sympy.Expr) -> bool:
    """Whether an expression is made of symbols and integers by sums, products and powers by positive integers alone."""
    if isinstance(index, sympy.Pow):
        base, exponent = index.args
        return isinstance(exponent, sympy.Integer) and exponent > 0 and is_polynomial(base)
    return isinstance(index, ATOMS) or (isinstance(index, SUMS) and all(map(is_polynomial, index.args)))


def stride(index: sympy.Expr, variable: sympy.Symbol) -> sympy.Expr:
    """The distance between the elements of an index at two values of a variable that follow each other."""
    if not is_polynomial(index):
        return general_stride(index, variable)
    return sympy.expand(sympy_subs(index, {variable: variable + 1}) - index)


def index_in_vectors(index: sympy.Expr, variable: sympy.Expr, length: int) -> sympy.Expr:
    """An index within a vector of that length, from which quotients that are constant there have been taken.

    A polynomial has no quotients, and its stride does not hang on how it is written.
    """
    return index if is_polynomial(index) else general_index(index, variable, length)
