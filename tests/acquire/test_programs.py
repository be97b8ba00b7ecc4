"""Each small program gives the same results under jit as in eager, twice, with one trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.acquire.programs import PROGRAMS, Node, X
from thunder_core.tracing.ir.check import check_trace


def same(ours: Any, eager: Any) -> bool:
    """Whether two values are equal in structure, types and values."""
    if type(ours) is not type(eager):
        return False
    if isinstance(eager, torch.Tensor):
        return torch.equal(ours, eager) and ours.requires_grad == eager.requires_grad
    if isinstance(eager, dict):
        return list(ours) == list(eager) and all(same(ours[key], eager[key]) for key in eager)
    if isinstance(eager, list | tuple):
        return len(ours) == len(eager) and all(map(same, ours, eager))
    if isinstance(eager, Node):
        return ours.me is ours and same(ours.value, eager.value)
    return bool(ours == eager)


@pytest.mark.parametrize("name", PROGRAMS)
def test_jit_equals_eager(name: str) -> None:
    function, args, kwargs = PROGRAMS[name]
    eager = function(*copy.copy(args), **kwargs)
    compiled = thunder.jit(function)
    for _ in range(2):
        assert same(compiled(*args, **kwargs), eager)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (1, 1)
    for trace in (*thunder.last_traces(compiled), *thunder.last_prologue_traces(compiled)):
        check_trace(trace)


def test_results_are_new_at_each_call() -> None:
    compiled = thunder.jit(lambda x: {"list": [x + 1]})
    first, second = compiled(X), compiled(X)
    assert first is not second
    assert first["list"] is not second["list"]


def test_object_returned_twice_is_the_same_object() -> None:
    function, args, _ = PROGRAMS["shared list"]
    first, second = thunder.jit(function)(*args)
    assert first is second


def test_argument_that_is_returned_is_the_same_object() -> None:
    def program(x: torch.Tensor, items: list[int]) -> Any:
        return x, items, {"items": items}

    items = [1, 2]
    compiled = thunder.jit(program)
    for _ in range(2):
        tensor, first, second = compiled(X, items)
        assert tensor is X
        assert first is items
        assert second["items"] is items
