"""Results of Inductor's wrapper with the strides that PyTorch gives them, in dimensions of size one too.

Inductor's own strides of such dimensions are others at times. No element lies elsewhere for that, but kernels and
derivatives take their ways by them: a tensor of one channel may look like channels last.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from thunder_core.fusion.conditions import NO_SIZES, SizesByName, size_of
from thunder_core.ir.proxy import TensorProxy
from thunder_executors.inductor.sizes import is_certain, text_of_sizes

VIEWS = "reinterpret_tensor"  # of a tensor, sizes, strides and an offset
PLACES_OF_STRIDES = {"empty_strided_cpu": 1, "empty_strided_cuda": 1, VIEWS: 2}  # among the arguments
Strides = tuple[Any, ...]


def with_strides(
    body: Sequence[ast.stmt], outputs: Sequence[TensorProxy], sizes: SizesByName = NO_SIZES
) -> Iterator[ast.stmt]:
    """The wrapper's statements, of which the last returns tensors with the outputs' strides.

    `sizes` are the symbols of the region, by the names that the wrapper has for them.
    """
    known: dict[str, Strides | None] = {}
    named = dict(sizes)
    for statement in body:
        if isinstance(statement, ast.Assign):
            target = ast.unparse(statement.targets[0])
            known[target] = strides_of(statement.value, known, named)
            if isinstance(statement.value, ast.BinOp):
                named[target] = size_of(ast.unparse(statement.value), named)
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            results = zip(statement.value.elts, outputs, strict=True)
            statement.value.elts = [_given(value, strides_of(value, known, named), proxy) for value, proxy in results]
        yield statement


def strides_of(value: ast.expr, known: dict[str, Strides | None], sizes: SizesByName) -> Strides | None:
    """The strides of what an expression makes, as its text tells them; None where it does not."""
    if isinstance(value, ast.Name):
        return known.get(value.id)
    place = PLACES_OF_STRIDES.get(ast.unparse(value.func)) if isinstance(value, ast.Call) else None
    return None if place is None else tuple(size_of(ast.unparse(value.args[place]), sizes))  # type: ignore[attr-defined]


def _given(value: ast.expr, strides: Strides | None, proxy: TensorProxy) -> ast.expr:
    """The expression, as a view with the proxy's strides where it has, or may have, others in sizes of one."""
    if strides is None:
        are_given = all(is_certain(size != 1) for size in proxy.shape)
    else:
        are_given = all(is_certain(one == other) for one, other in zip(strides, proxy.stride, strict=True))
    if are_given:
        return value
    layout = f"{text_of_sizes(proxy.shape)}, {text_of_sizes(proxy.stride)}"
    return ast.parse(f"{VIEWS}({ast.unparse(value)}, {layout}, 0)", mode="eval").body
