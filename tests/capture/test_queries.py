"""Queries about tensors from outside have eager's answers at each call, also for tensors with the same metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def tracked() -> Tensor:
    return torch.ones(2, requires_grad=True)


def with_retained_grad() -> Tensor:
    result = tracked() * 2
    result.retain_grad()
    return result


def with_hook() -> Tensor:
    leaf = tracked()
    leaf.register_hook(lambda grad: grad)
    return leaf


def last_row() -> Tensor:
    return torch.ones(2, 2, requires_grad=True).unbind(0)[1]


QUERIES: dict[str, tuple[Callable[[Tensor], Any], list[Callable[[], Tensor]]]] = {
    "retains_grad": (lambda x: x.retains_grad, [lambda: tracked() * 2, with_retained_grad]),
    "hooks": (lambda x: x._backward_hooks is None, [tracked, with_hook]),
    "base": (lambda x: x._base is None, [tracked, lambda: tracked()[:]]),
    "output number": (lambda x: x.output_nr, [lambda: tracked() * 2, last_row]),
    "node": (lambda x: x.grad_fn.name(), [lambda: tracked() * 2, lambda: tracked() + 2]),
    "shared": (lambda x: x.is_shared(), [lambda: torch.ones(2), lambda: torch.ones(2).share_memory_()]),
    "bytes": (lambda x: x.untyped_storage().nbytes(), [lambda: torch.ones(2), lambda: torch.ones(5)[1:3]]),
    "length": (lambda x: len(x[1:].untyped_storage()), [lambda: torch.ones(2), lambda: torch.ones(5)[1:3]]),
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_match_eager_at_each_call(name: str) -> None:
    query, sources = QUERIES[name]
    compiled = thunder.jit(lambda x: (query(x), x * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a call may run in eager PyTorch
        for source in (*sources, *sources):
            assert compiled(source())[0] == query(source())
