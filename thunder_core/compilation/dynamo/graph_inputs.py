"""The inputs of a graph that Dynamo captured: those that it reads, and the sizes and numbers that are symbols."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._sympy.numbers import int_oo

from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument

FAR = 2**31  # a bound of a size that Dynamo has for want of one


def placeholders_of(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The inputs of a graph, in their order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def with_inputs_read(captured: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[int]]:
    """Return a copy of a graph without the inputs that it does not read, and the places of the others among all.

    Sizes that Dynamo gives it as numbers beside their tensors are asked of the tensors, so that each is one symbol.
    """
    module = torch.fx.GraphModule(captured, copy.deepcopy(captured.graph))
    ask_tensors_for_sizes(module)
    kept = []
    for place, node in enumerate(placeholders_of(module)):
        if node.users:
            kept.append(place)
        else:
            module.graph.erase_node(node)
    module.recompile()
    return module, kept


def ask_tensors_for_sizes(module: torch.fx.GraphModule) -> None:
    """Change a graph so that it asks its tensors for the sizes that it is given as numbers."""
    placeholders = placeholders_of(module)
    sizes = {
        str(size): (node, place)
        for node in reversed(placeholders)
        if isinstance(tensor := node.meta.get("example_value"), torch.Tensor)
        for place, size in symbolic_sizes(tensor)
    }
    for node in placeholders:
        number = node.meta.get("example_value")
        if is_symbol(number) and node.users and str(number) in sizes:
            with module.graph.inserting_after(placeholders[-1]):
                size = module.graph.call_method("size", sizes[str(number)])
            size.meta = {"example_value": number}
            node.replace_all_uses_with(size)


def symbolic_inputs(module: torch.fx.GraphModule) -> tuple[SymbolicArgument, ...]:
    """The numbers, and the sizes of tensors, among the inputs that are symbols of Dynamo's, with their ranges.

    They are hints, as nobody has named them: where an executor has no kernels for symbols they are constants, and the
    graph is traced again for other sizes.
    """
    names = inspect.signature(module.forward).parameters
    pairs = zip(names, placeholders_of(module), strict=True)
    return tuple(one for name, node in pairs for one in _symbols_of(name, node.meta.get("example_value")))


def _symbols_of(name: str, example: Any) -> Iterator[SymbolicArgument]:
    hint = f" with {name}"  # a name counts in calls that have the argument behind the `with`: here in all of them
    if is_symbol(example):
        yield SymbolicArgument(name + hint, *_range_of(example))
    elif isinstance(example, torch.Tensor) and not isinstance(example, torch.nn.Parameter):
        for place, size in symbolic_sizes(example):
            lower, upper = _range_of(size)
            yield SymbolicArgument(f"{name}.size({place}){hint}", max(lower or 1, 1), upper)


def symbolic_sizes(tensor: torch.Tensor) -> Iterator[tuple[int, torch.SymInt]]:
    """The sizes of a tensor that are symbols, by their dimensions."""
    sizes: Iterable[Any] = tensor.shape
    yield from ((place, size) for place, size in enumerate(sizes) if is_symbol(size))


def is_symbol(value: Any) -> bool:
    """Whether an input is a number that Dynamo has as a symbol."""
    return isinstance(value, torch.SymInt | torch.SymFloat) and bool(is_symbolic(value))


def _range_of(symbol: Any) -> tuple[int | None, int | None]:
    """The range of the values that Dynamo's guards leave to a symbol; None where there is no bound."""
    if isinstance(symbol, torch.SymFloat):
        return None, None
    bounds = symbol.node.shape_env.bound_sympy(symbol.node.expr)
    lower = None if bounds.lower in (-int_oo, int_oo) or bounds.lower < -FAR else int(bounds.lower)
    upper = None if bounds.upper in (-int_oo, int_oo) or bounds.upper > FAR else int(bounds.upper)
    return lower, upper
