"""The inputs of a graph that Dynamo captured: the inputs that the graph reads, and its symbolic sizes and numbers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._sympy.numbers import int_oo

from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument

DYNAMO_MAX_SIZE = 2**31  # the upper bound that Dynamo gives a size without an upper bound


def placeholders_of(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the inputs of a graph, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def without_unused_inputs(captured: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[int]]:
    """Return a copy of a graph without unused inputs, and the positions of the used inputs among all inputs.

    Dynamo passes sizes as numbers next to their tensors. The copy reads such sizes from the tensors, so that each size
    is one symbol.
    """
    module = torch.fx.GraphModule(captured, copy.deepcopy(captured.graph))
    read_sizes_from_tensors(module)
    positions = []
    for index, node in enumerate(placeholders_of(module)):
        if node.users:
            positions.append(index)
        else:
            module.graph.erase_node(node)
    module.recompile()
    return module, positions


def read_sizes_from_tensors(module: torch.fx.GraphModule) -> None:
    """Change a graph so that it reads sizes from its tensors instead of taking them as numbers."""
    placeholders = placeholders_of(module)
    sizes = {
        str(size): (node, dimension)
        for node in reversed(placeholders)
        if isinstance(tensor := node.meta.get("example_value"), torch.Tensor)
        for dimension, size in symbolic_sizes(tensor)
    }
    for node in placeholders:
        number = node.meta.get("example_value")
        if is_symbol(number) and node.users and str(number) in sizes:
            with module.graph.inserting_after(placeholders[-1]):
                size = module.graph.call_method("size", sizes[str(number)])
            size.meta = {"example_value": number}
            node.replace_all_uses_with(size)


def symbolic_inputs(module: torch.fx.GraphModule) -> tuple[SymbolicArgument, ...]:
    """Return the symbolic numbers and tensor sizes among the inputs, with their ranges.

    The result is used as hints, because no user has named these numbers and sizes. If an executor has no kernels for
    symbolic sizes, they become constants, and the graph is traced again for other sizes.
    """
    names = inspect.signature(module.forward).parameters
    pairs = zip(names, placeholders_of(module), strict=True)
    return tuple(symbol for name, node in pairs for symbol in _symbols_of(name, node.meta.get("example_value")))


def _symbols_of(name: str, example: object) -> Iterator[SymbolicArgument]:
    """Yield the symbolic arguments of an input, without those for which Dynamo's guards allow only one value."""
    hint = f" with {name}"  # makes the name a hint for calls that have the argument `name`, which every call has
    if is_symbol(example):
        lower, upper = _range_of(example)
        if may_vary(lower, upper):
            yield SymbolicArgument(name + hint, lower, upper)
    elif isinstance(example, torch.Tensor) and not isinstance(example, torch.nn.Parameter):
        for dimension, size in symbolic_sizes(example):
            lower, upper = _range_of(size)
            if may_vary(lower, upper):
                yield SymbolicArgument(f"{name}.size({dimension}){hint}", max(lower or 1, 1), upper)


def may_vary(lower: int | None, upper: int | None) -> bool:
    """Whether a range has more than one value; None is a missing bound."""
    return lower is None or lower != upper


def symbolic_sizes(tensor: torch.Tensor) -> Iterator[tuple[int, torch.SymInt]]:
    """Yield the symbolic sizes of a tensor with their dimensions."""
    sizes: Iterable[Any] = tensor.shape
    yield from ((index, size) for index, size in enumerate(sizes) if is_symbol(size))


def is_symbol(value: object) -> bool:
    """Whether an input is a symbolic number of Dynamo."""
    return isinstance(value, torch.SymInt | torch.SymFloat) and bool(is_symbolic(value))


def _range_of(symbol: Any) -> tuple[int | None, int | None]:
    """Return the range that Dynamo's guards allow for a symbol; None for a missing bound."""
    if isinstance(symbol, torch.SymFloat):
        return None, None
    bounds = symbol.node.shape_env.bound_sympy(symbol.node.expr)
    lower = None if bounds.lower in (-int_oo, int_oo) or bounds.lower < -DYNAMO_MAX_SIZE else int(bounds.lower)
    upper = None if bounds.upper in (-int_oo, int_oo) or bounds.upper > DYNAMO_MAX_SIZE else int(bounds.upper)
    return lower, upper
