"""Arguments of C functions are guarded as deeply as C can read: after a change far inside, the result matches eager."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

X = torch.arange(27.0).reshape(3, 3, 3)

CASES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Any, Any]] = {
    "an index of lists": (lambda x, index: x[index], ([0, 2], [1, 1]), ([0, 2], [1, 2])),
    "an index that the program completes": (lambda x, item: x[:, item], [0, 2], [0, 1]),
    "an index inside one": (lambda x, items: x[(slice(None), items[0])], [[0, 2]], [[0, 1]]),
    "a comparison": (lambda x, items: x * (items == [[1, 2], [3]]), [[1, 2], [3]], [[1, 2], [4]]),
    "membership": (lambda x, items: x * ([1, 2] in items), [[1, 2], [3]], [[1, 1], [3]]),
    "a method that compares": (lambda x, items: x * items.count([1]), [[1], [1]], [[1], [2]]),
    "text": (lambda x, items: x * str(items).count("1"), [[1], [1]], [[1], [2]]),
    "a library in C": (lambda x, items: x * len(json.dumps(items)), [[1], [1]], [[1], [222]]),
    "a hash": (lambda x, items: x * (hash(items) % 7), ((1, 2), (3,)), ((1, 2), (4,))),
    "unpacked arguments": (lambda x, items: x.permute(*items[0]), [(0, 1, 2)], [(1, 2, 0)]),
    "keywords": (lambda x, table: torch.sum(x, **table["by"]), {"by": {"dim": [0]}}, {"by": {"dim": [0, 1]}}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_far_inside_is_noticed(name: str) -> None:
    program, first, second = CASES[name]
    compiled = thunder.jit(program)
    for items in (first, second, first):
        assert torch.equal(compiled(X, items), program(X, items))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_len_does_not_guard_the_items() -> None:
    compiled = thunder.jit(lambda x, items: x * len(items))
    compiled(X, [[1], [2]])
    compiled(X, [[3], [4]])
    assert thunder.cache_hits(compiled) == 1
