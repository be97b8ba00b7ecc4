"""Statements of Inductor's wrapper that differ between versions of PyTorch, normalized to one form.

From PyTorch 2.14 on, one statement checks the layouts of several tensors, and another also checks a dtype.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

CHECK_LAYOUT = "assert_size_stride"  # takes a tensor, its sizes, its strides and the name of an operation


def checks_of_each(tensors: ast.Tuple, sizes: ast.Tuple, strides: ast.Tuple, *more: ast.expr) -> Iterator[ast.expr]:
    """Yield one check for each tensor, in place of a check of several tensors."""
    for tensor, size, stride in zip(tensors.elts, sizes.elts, strides.elts, strict=True):
        yield _check(tensor, size, stride, *more)


def check_of_layout(
    tensor: ast.expr, size: ast.expr, stride: ast.expr, dtype: ast.expr, *more: ast.expr
) -> Iterator[ast.expr]:
    """Yield the check of a tensor's layout; its dtype is not checked, as before PyTorch 2.14."""
    yield _check(tensor, size, stride, *more)


SPELLINGS: dict[str, Callable[..., Iterator[ast.expr]]] = {
    "assert_size_stride_grouped": checks_of_each,
    "assert_tensor_metadata": check_of_layout,
}


def with_plain_checks(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements with layout checks as calls of `assert_size_stride`, one for each tensor."""
    for statement in body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        spelling = SPELLINGS.get(ast.unparse(call.func)) if isinstance(call, ast.Call) else None
        if spelling is None or not isinstance(call, ast.Call):
            yield statement
        else:
            yield from map(ast.Expr, spelling(*call.args))


def _check(*arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(CHECK_LAYOUT, ast.Load()), list(arguments), [])
