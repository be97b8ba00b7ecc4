"""Copies of tensors and modules that a program makes with Python's `copy` match eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.frontend.acquire.codegen.rebuilding import attributes_of_fakes


class Net(nn.Module):
    """A module with tied weights and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(2))
        self.tied = self.weight
        self.layer = nn.Linear(2, 2)


NET = Net()


def of_a_module(x: Tensor) -> Any:
    made = copy.deepcopy(NET)
    with torch.no_grad():
        made.weight.add_(x.sum())
    return made.weight is made.tied, made.weight, [*made.state_dict().items()]


def of_shared_memory(x: Tensor) -> Any:
    first, second, same = copy.deepcopy([x[:2], x[1:], x[:2]])
    first.add_(1)
    return first, second, same, x


def of_one_that_is_met_twice(x: Tensor) -> Any:
    made = copy.deepcopy({"a": x, "b": [x, x * 2], "c": x.view(2, 2).T})
    made["a"].mul_(3)
    return made, made["a"] is made["b"][0]


def of_a_leaf(x: Tensor) -> Any:
    leaf = (x * 2).requires_grad_()
    (leaf * leaf).sum().backward()
    leaf.level = [x, 1]  # type: ignore[attr-defined]
    made: Any = copy.deepcopy(leaf)
    return made, made.grad, made.level, made.level[0] is x


def shallow(x: Tensor) -> Any:
    made, parameter = copy.copy(x), copy.copy(NET.weight)
    made.add_(1)
    return made, parameter, x


PROGRAMS: tuple[Callable[[Tensor], Any], ...] = (
    of_a_module,
    of_shared_memory,
    of_one_that_is_met_twice,
    of_a_leaf,
    shallow,
)


def shown(value: Any) -> Any:
    """Return everything that can be observed of a value."""
    if isinstance(value, Tensor):
        return type(value), value.tolist(), value.stride(), value.requires_grad, value.is_leaf
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_copies_match_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    for step in range(2):
        assert shown(compiled(torch.arange(4.0) + step)) == shown(program(torch.arange(4.0) + step))
    assert thunder.cache_misses(compiled) == 1


def test_copy_of_a_tensor_with_a_graph_raises_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="graph leaves"):
        thunder.jit(lambda x: copy.deepcopy(x * NET.weight.sum()))(torch.ones(2))


def test_first_copy_in_a_process_records_no_operations_of_thunder() -> None:
    attributes_of_fakes.cache_clear()
    fast = thunder.jit(lambda x: copy.deepcopy(torch.ones(2)) + x, executors=("torch",))
    fast(torch.ones(2))
    assert "empty" not in str(thunder.last_traces(fast)[0])


def test_a_copy_shares_the_objects_that_its_original_shares_at_each_call() -> None:
    def program(x: Tensor, lists: list[list[int]]) -> Tensor:
        copied = copy.deepcopy(lists)
        copied[0].append(1)
        return x * len(copied[1])

    compiled, x, shared = thunder.jit(program), torch.ones(2), [1]
    for lists in ([[1], [1]], [shared, shared], [[1], [1]]):
        assert torch.equal(compiled(x, lists), program(x, lists))
