"""Make Inductor's wrapper return what PyTorch returns: separate tensors with PyTorch's strides.

Inductor's strides of dimensions of size one sometimes differ. No element's address depends on them, but kernels and
derivatives choose algorithms by them: a tensor with one channel may look like channels last. If a view changes nothing,
Inductor returns the viewed tensor itself; PyTorch returns another tensor on the same memory.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from thunder_core.backend.fusion.conditions import NO_SIZES, SizesByName, size_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_executors.inductor.sizes import is_certain, text_of_sizes

VIEWS = "reinterpret_tensor"  # takes a tensor, sizes, strides and an offset
STRIDES_ARGUMENT = {
    "empty_strided_cpu": 1,
    "empty_strided_cuda": 1,
    VIEWS: 2,
}  # the index of the argument with the strides
Strides = tuple[Any, ...]


def with_strides(
    body: Sequence[ast.stmt],
    inputs: Sequence[str],
    outputs: Sequence[TensorProxy],
    sizes: SizesByName = NO_SIZES,
) -> Iterator[ast.stmt]:
    """Yield the wrapper's statements; the last returns new tensors with the outputs' strides.

    `inputs` are the names of the wrapper's inputs, and `sizes` maps the names of sizes to the region's symbols.
    """
    strides_by_name: dict[str, Strides | None] = {}
    named = dict(sizes)
    tensors = {name: name for name in inputs}  # the first name of each tensor
    for statement in body:
        if isinstance(statement, ast.Assign):
            target = ast.unparse(statement.targets[0])
            strides_by_name[target] = strides_of(statement.value, strides_by_name, named)
            tensors[target] = tensors.get(ast.unparse(statement.value), target)
            if isinstance(statement.value, ast.BinOp):
                named[target] = size_of(ast.unparse(statement.value), named)
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            values = statement.value.elts
            names = [tensors.get(ast.unparse(value), "") for value in values]  # the names of expressions are empty
            returned = set(inputs)
            for index, (value, name, proxy) in enumerate(zip(values, names, outputs, strict=True)):
                if name in returned or not has_strides(strides_of(value, strides_by_name, named), proxy):
                    values[index] = as_view(value, proxy)
                returned |= {name} - {""}
        yield statement


def strides_of(value: ast.expr, strides_by_name: dict[str, Strides | None], sizes: SizesByName) -> Strides | None:
    """Return the strides of an expression's tensor, if its text shows them; else None."""
    if isinstance(value, ast.Name):
        return strides_by_name.get(value.id)
    argument = STRIDES_ARGUMENT.get(ast.unparse(value.func)) if isinstance(value, ast.Call) else None
    return None if argument is None else tuple(size_of(ast.unparse(value.args[argument]), sizes))  # type: ignore[attr-defined]


def has_strides(strides: Strides | None, proxy: TensorProxy) -> bool:
    """Whether a tensor with these strides has the proxy's strides, also in dimensions of size one; False if unsure.

    Unknown strides are the proxy's unless a size is one, because `check_outputs` has compared the others.
    """
    if strides is None:
        return all(is_certain(size != 1) for size in proxy.shape)
    return all(is_certain(own == expected) for own, expected in zip(strides, proxy.stride, strict=True))


def as_view(value: ast.expr, proxy: TensorProxy) -> ast.expr:
    """Return an expression for a view of an expression's tensor with the proxy's shape and strides."""
    layout = f"{text_of_sizes(proxy.shape)}, {text_of_sizes(proxy.stride)}"
    return ast.parse(f"{VIEWS}({ast.unparse(value)}, {layout}, 0)", mode="eval").body
