"""Results of Inductor's wrapper with the strides that PyTorch gives them, in dimensions of size one too.

Inductor's own strides of such dimensions are others at times. No element lies elsewhere for that, but kernels and
derivatives take their ways by them: a tensor of one channel may look like channels last.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from thunder_core.ir.proxy import TensorProxy

VIEWS = "reinterpret_tensor"  # of a tensor, sizes, strides and an offset
PLACES_OF_STRIDES = {"empty_strided_cpu": 1, "empty_strided_cuda": 1, VIEWS: 2}  # among the arguments
Strides = tuple[int, ...]


def with_strides(body: Sequence[ast.stmt], outputs: Sequence[TensorProxy]) -> Iterator[ast.stmt]:
    """The wrapper's statements, of which the last returns tensors with the outputs' strides."""
    known: dict[str, Strides | None] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            known[ast.unparse(statement.targets[0])] = strides_of(statement.value, known)
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            results = zip(statement.value.elts, outputs, strict=True)
            statement.value.elts = [_given(value, strides_of(value, known), proxy) for value, proxy in results]
        yield statement


def strides_of(value: ast.expr, known: dict[str, Strides | None]) -> Strides | None:
    """The strides of what an expression makes, as its text tells them; None where it does not."""
    if isinstance(value, ast.Name):
        return known.get(value.id)
    place = PLACES_OF_STRIDES.get(ast.unparse(value.func)) if isinstance(value, ast.Call) else None
    return None if place is None else tuple(ast.literal_eval(value.args[place]))  # type: ignore[attr-defined]


def _given(value: ast.expr, strides: Strides | None, proxy: TensorProxy) -> ast.expr:
    """The expression, as a view with the proxy's strides where it has, or may have, others in sizes of one."""
    if strides == proxy.stride or (strides is None and 1 not in proxy.shape):
        return value
    return ast.parse(f"{VIEWS}({ast.unparse(value)}, {proxy.shape}, {proxy.stride}, 0)", mode="eval").body
