"""A check that the results of Inductor's lowerings have the same sizes as in PyTorch's meta functions.

For symbolic sizes, some lowerings take a branch that is right only for some sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.graph import GraphLowering
from torch.fx import Node

from thunder_core.tracing.capture.symbolic.all_sizes import decide_sizes_of_one
from thunder_core.tracing.ir.sizes import expressions

inductor_pooling_size: Any = lowering.pooling_size
inductor_run_node = GraphLowering.run_node


@contextmanager
def require_traced_sizes() -> Iterator[None]:
    """Raise `RuntimeError` within the context if a lowering's result has other sizes than its node."""
    with (
        mock.patch.object(lowering, "pooling_size", pooling_size),
        mock.patch.object(GraphLowering, "run_node", lower_node),
    ):
        yield


def pooling_size(*args: Any, **kwargs: Any) -> tuple[Any, bool]:
    """Return the pooled size of a dimension, and whether the last window reaches beyond its end.

    A guard decides whether that window would begin in the padding, because the answer depends on the size.
    """
    with decide_sizes_of_one():
        size: tuple[Any, bool] = inductor_pooling_size(*args, **kwargs)
        return size


def lower_node(graph: GraphLowering, node: Node) -> object:
    """Return the result that a node is lowered to; raise `RuntimeError` if its sizes differ from the node's value."""
    result = inductor_run_node(graph, node)
    value = node.meta.get("val")
    if not isinstance(result, ir.TensorBox) or not isinstance(value, torch.Tensor):
        return result
    sizes: tuple[Any, ...] = tuple(value.shape)
    traced = expressions(sizes)
    lowered = list(result.get_size())
    if len(lowered) != len(traced) or any(_differ(graph, *pair) for pair in zip(lowered, traced, strict=True)):
        raise RuntimeError(f"{node.target} was lowered to the sizes {lowered} instead of {traced}")
    return result


def _differ(graph: GraphLowering, lowered: Any, traced: sympy.Expr) -> bool:
    """Whether two sizes differ for the symbols' values while tracing."""
    if lowered == traced:
        return False
    hints = graph.sizevars.shape_env.backed_var_to_val
    difference = sympy.sympify(lowered - traced).xreplace(hints)
    return bool(difference.is_number and difference != 0)
