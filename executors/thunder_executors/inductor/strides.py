"""Results of Inductor's wrapper as PyTorch gives them: tensors of their own, with strides of their own.

Inductor's strides of dimensions of size one are others at times. No element lies elsewhere for that, but kernels and
derivatives take their ways by them: a tensor of one channel may look like channels last. And where a view changes
nothing, Inductor returns the tensor that is viewed; PyTorch returns another one on the same memory.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from thunder_core.backend.fusion.conditions import NO_SIZES, SizesByName, size_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_executors.inductor.sizes import is_certain, text_of_sizes

VIEWS = "reinterpret_tensor"  # of a tensor, sizes, strides and an offset
PLACES_OF_STRIDES = {"empty_strided_cpu": 1, "empty_strided_cuda": 1, VIEWS: 2}  # among the arguments
Strides = tuple[Any, ...]


def with_strides(
    body: Sequence[ast.stmt],
    inputs: Sequence[str],
    outputs: Sequence[TensorProxy],
    sizes: SizesByName = NO_SIZES,
) -> Iterator[ast.stmt]:
    """The wrapper's statements, of which the last returns new tensors with the outputs' strides.

    `inputs` are the wrapper's names of what it is given, and `sizes` the symbols of the region by such names.
    """
    known: dict[str, Strides | None] = {}
    named = dict(sizes)
    tensors = {name: name for name in inputs}  # the name by which each tensor was known first
    for statement in body:
        if isinstance(statement, ast.Assign):
            target = ast.unparse(statement.targets[0])
            known[target] = strides_of(statement.value, known, named)
            tensors[target] = tensors.get(ast.unparse(statement.value), target)
            if isinstance(statement.value, ast.BinOp):
                named[target] = size_of(ast.unparse(statement.value), named)
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            values = statement.value.elts
            names = [tensors.get(ast.unparse(value), "") for value in values]  # those of expressions are empty
            returned = set(inputs)
            for place, (value, name, proxy) in enumerate(zip(values, names, outputs, strict=True)):
                if name in returned or not has_strides(strides_of(value, known, named), proxy):
                    values[place] = as_view(value, proxy)
                returned |= {name} - {""}
        yield statement


def strides_of(value: ast.expr, known: dict[str, Strides | None], sizes: SizesByName) -> Strides | None:
    """The strides of what an expression makes, as its text tells them; None where it does not."""
    if isinstance(value, ast.Name):
        return known.get(value.id)
    place = PLACES_OF_STRIDES.get(ast.unparse(value.func)) if isinstance(value, ast.Call) else None
    return None if place is None else tuple(size_of(ast.unparse(value.args[place]), sizes))  # type: ignore[attr-defined]


def has_strides(strides: Strides | None, proxy: TensorProxy) -> bool:
    """Whether a tensor of these strides has those of the proxy, in dimensions of size one too; False if in doubt."""
    if strides is None:
        return all(is_certain(size != 1) for size in proxy.shape)
    return all(is_certain(one == other) for one, other in zip(strides, proxy.stride, strict=True))


def as_view(value: ast.expr, proxy: TensorProxy) -> ast.expr:
    """An expression for a view of all that the expression computes, with the proxy's shape and strides."""
    layout = f"{text_of_sizes(proxy.shape)}, {text_of_sizes(proxy.stride)}"
    return ast.parse(f"{VIEWS}({ast.unparse(value)}, {layout}, 0)", mode="eval").body
