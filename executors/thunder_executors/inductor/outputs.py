"""A check that a region's results have the strides of PyTorch's results, and share memory as PyTorch's results do."""

from __future__ import annotations

import ast

from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_executors.inductor.generate import GeneratedCode, Unsupported
from thunder_executors.inductor.graph import same_layout
from thunder_executors.inductor.sizes import text_of_sizes
from thunder_executors.inductor.strides import VIEWS
from thunder_executors.inductor.wrapper import statements, unpacked_names


def check_outputs(region: Region, generated: GeneratedCode) -> None:
    """Raise `Unsupported` if a program could distinguish Inductor's results from PyTorch's."""
    for proxy, stride in zip(region.outputs, generated.strides, strict=True):
        if stride is not None and not same_layout(proxy.shape, proxy.stride, stride):
            actual, expected = text_of_sizes(stride), text_of_sizes(proxy.stride)
            raise Unsupported(f"a result has the strides {actual} instead of {expected}")
    if shared_in_wrapper(generated.wrapper, len(region.inputs)) != shared_in_region(region):
        raise Unsupported("Inductor's results share memory differently from PyTorch's")


def shared_in_region(region: Region) -> list[int]:
    """Return, for each input and output, the index of the first tensor that shares its memory in PyTorch."""
    aliasing = alias_sets(region.operations)
    return _first_indices([aliasing.representative(proxy.name) for proxy in (*region.inputs, *region.outputs)])


def shared_in_wrapper(wrapper: str, count: int) -> list[int]:
    """Return the same as `shared_in_region` for Inductor's wrapper, whose first `count` arguments are tensors."""
    bases: dict[str, str] = {}
    inputs: list[str] = []
    for statement in statements(wrapper):
        if isinstance(statement, ast.Assign):
            inputs += unpacked_names(statement)
            bases[ast.unparse(statement.targets[0])] = _base(statement.value, bases)
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            results = [_base(value, bases) for value in statement.value.elts]
            return _first_indices([*inputs[:count], *results])
    raise Unsupported("Inductor's wrapper does not return a tuple")


def _base(value: ast.expr, bases: dict[str, str]) -> str:
    """Return the buffer of an expression: a name, the base of a view, or a new buffer."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == VIEWS:
        return _base(value.args[0], bases)
    if isinstance(value, ast.Name):
        return bases.get(value.id, value.id)
    return f"new {id(value)}"


def _first_indices(names: list[str]) -> list[int]:
    return [names.index(name) for name in names]
