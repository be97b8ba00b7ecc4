"""Gradients of programs that compute with sparse gradients equal those of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

import thunder_core as thunder


def read_once(tokens: Tensor, table: Tensor) -> Tensor:
    return embedding(tokens, table, sparse=True)


def read_twice(tokens: Tensor, table: Tensor) -> Tensor:
    return embedding(tokens, table, sparse=True) * embedding(tokens + 1, table, sparse=True)


def read_by_another_operation(tokens: Tensor, table: Tensor) -> Tensor:
    return embedding(tokens, table, sparse=True) * table[:2]


def read_after_an_operation(tokens: Tensor, table: Tensor) -> Tensor:
    return embedding(tokens, table * 2, sparse=True)


def sum_after_an_operation(tokens: Tensor, table: Tensor) -> Tensor:
    return embedding_bag(tokens.view(1, -1), table * 2, mode="sum", sparse=True)


def gathered_after_an_operation(tokens: Tensor, table: Tensor) -> Tensor:
    return torch.gather(table * 2, 0, tokens.view(1, -1), sparse_grad=True)


@pytest.mark.parametrize(
    "program",
    [
        read_once,
        read_twice,
        read_by_another_operation,
        read_after_an_operation,
        sum_after_an_operation,
        gathered_after_an_operation,
    ],
)
def test_sparse_gradients_equal_eager(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    gradients = []
    compiled = thunder.jit(program)
    for call in (program, compiled, compiled):
        table = torch.linspace(-1, 2, 20).view(5, 4).requires_grad_()
        call(torch.tensor([0, 3]), table).sin().sum().backward()
        assert table.grad is not None
        gradients.append(table.grad)
    assert len({gradient.layout for gradient in gradients}) == 1
    expected, *actual = (gradient.to_dense() for gradient in gradients)
    for gradient in actual:
        torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
    assert (thunder.last_backward_reason(compiled) == "") == (program is read_once)
