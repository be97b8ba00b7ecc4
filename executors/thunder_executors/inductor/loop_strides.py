"""Faster strides of loop indices: polynomials are expanded instead of simplified by SymPy's general rules."""

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

# The module of Inductor that defines both functions: `sizevars` from PyTorch 2.12 on, the C++ backend before.
OWNER: Any = sizevars if hasattr(sizevars, "stride_at") else cpp

general_stride = OWNER.stride_at
general_index = OWNER.simplify_index_in_vec_range


@contextmanager
def expanded_strides() -> Iterator[None]:
    """Make Inductor expand polynomials within the context.

    This is equivalent to `sympy.simplify`, at a tenth of its time.
    """
    with (
        mock.patch.object(OWNER, "stride_at", stride),
        mock.patch.object(OWNER, "simplify_index_in_vec_range", index_in_vectors),
    ):
        yield


@cache
def is_polynomial(index: sympy.Expr) -> bool:
    """Whether an expression has only symbols, integers, sums, products and powers by positive integers."""
    if isinstance(index, sympy.Pow):
        base, exponent = index.args
        return isinstance(exponent, sympy.Integer) and exponent > 0 and is_polynomial(base)
    return isinstance(index, ATOMS) or (isinstance(index, SUMS) and all(map(is_polynomial, index.args)))


def stride(index: sympy.Expr, variable: sympy.Symbol) -> sympy.Expr:
    """Return by how much an index grows if a variable grows by one."""
    if not is_polynomial(index):
        return general_stride(index, variable)
    return sympy.expand(sympy_subs(index, {variable: variable + 1}) - index)


def index_in_vectors(index: sympy.Expr, variable: sympy.Expr, length: int) -> sympy.Expr:
    """Return an index within a vector of that length, simplified by removing quotients that are constant there.

    A polynomial has no quotients, and its stride does not depend on its form.
    """
    return index if is_polynomial(index) else general_index(index, variable, length)
