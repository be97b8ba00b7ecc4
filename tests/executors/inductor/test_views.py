"""Results of a region that are trivial views: separate tensors on the memory of their base."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def of_an_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(4, 4), x.sin() + 1


def of_a_result(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin() + 1
    return y, y.view(4, 4)


def twice(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin() + 1
    return y.reshape(4, 4), y.view(4, 4), y[:]


def of_what_is_written(x: Tensor) -> tuple[Tensor, ...]:
    y = x.cos()
    y.add_(1).mul_(2)
    return y, y.view(4, 4)


@pytest.mark.parametrize("program", [of_an_input, of_a_result, twice, of_what_is_written], ids=lambda one: one.__name__)
def test_a_view_that_changes_nothing_is_another_tensor_on_the_same_memory(
    program: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    x = torch.arange(16.0).reshape(4, 4)
    results, expected = thunder.jit(program, executors=("inductor", "torch"))(x), program(x)
    torch.testing.assert_close(results, expected)
    assert shared((x, *results)) == shared((x, *expected))
    for result in results:
        result.resize_(1)  # an operation on one tensor does not affect the other
    assert x.shape == (4, 4)


def shared(tensors: tuple[Tensor, ...]) -> list[list[tuple[bool, bool]]]:
    """For each pair of tensors, whether they are the same object and whether they share memory."""
    return [[(tensor is other, tensor.data_ptr() == other.data_ptr()) for tensor in tensors] for other in tensors]
