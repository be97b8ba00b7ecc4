"""A program that reads the nodes of its autograd graph finds its own parameters and tensors there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder


def leaves_of(node: Any) -> list[Tensor]:
    """Return the leaves that a node of the graph leads to, as tools that find unused parameters do."""
    if node is None:
        return []
    leaves = [node.variable] if hasattr(node, "variable") else []
    return leaves + [leaf for following, _ in node.next_functions for leaf in leaves_of(following)]


def unused_parameters(model: nn.ModuleList, x: Tensor) -> list[str]:
    used = {id(leaf) for leaf in leaves_of(model[0](x).grad_fn)}
    return [name for name, parameter in model.named_parameters() if id(parameter) not in used]


def identities(model: nn.ModuleList, x: Tensor) -> list[bool]:
    leaves = leaves_of(model[0](x).grad_fn)
    return [leaf is parameter for leaf in leaves for parameter in model.parameters()]


def saved_tensors(model: nn.ModuleList, x: Tensor) -> list[Any]:
    node = (x * model[0].bias).exp().grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    return [node._saved_self is x, node._saved_self.tolist()]


def saved_tensors_in_a_tuple(model: nn.ModuleList, x: Tensor) -> list[Any]:
    rows = torch.arange(2)
    node = (x * model[0].bias)[rows].grad_fn
    return [node._saved_indices[0].tolist(), node._saved_indices[0] is rows]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "program",
    [unused_parameters, identities, saved_tensors, saved_tensors_in_a_tuple],
    ids=lambda program: program.__name__,
)
def test_nodes_refer_to_tensors_of_the_program(program: Callable[[nn.ModuleList, Tensor], Any]) -> None:
    model, x = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), torch.ones(2)
    fast = thunder.jit(program, executors=("torch",))
    assert [fast(model, x) for _ in range(2)] == [program(model, x)] * 2


def test_a_leaf_found_in_the_graph_is_returned_as_itself() -> None:
    model = nn.Linear(2, 2)
    fast = thunder.jit(lambda x: leaves_of(model(x).grad_fn), executors=("torch",))
    for _ in range(2):
        found = fast(torch.ones(2))
        assert all(any(leaf is parameter for parameter in model.parameters()) for leaf in found)
        assert len(found) == 2
