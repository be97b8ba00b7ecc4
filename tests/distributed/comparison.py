"""Comparison of a compiled program with eager PyTorch on each rank, over several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten

import thunder_core as thunder
from thunder_core.foundation.errors import ThunderError

CALLS = 3


def assert_same(program: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> Any:
    """Assert that results and written arguments equal eager's at several calls; return the compiled function."""
    compiled = thunder.jit(program)
    for call in range(CALLS):
        expected_arguments, actual_arguments = arguments(call), arguments(call)
        expected = program(*expected_arguments)
        dist.barrier()  # works that the program does not wait for end
        actual = compiled(*actual_arguments)
        assert_equal((actual, actual_arguments), (expected, expected_arguments))
    return compiled


def assert_equal(actual: Any, expected: Any) -> None:
    """Assert that two trees have the same structure and equal leaves, tensors bit by bit."""
    (leaves, structure), (others, other_structure) = tree_flatten(actual), tree_flatten(expected)
    assert structure == other_structure
    for leaf, expected_leaf in zip(leaves, others, strict=True):
        if isinstance(leaf, torch.Tensor):
            torch.testing.assert_close(leaf, expected_leaf, rtol=0, atol=0)
        else:
            assert type(leaf) is type(expected_leaf)
            assert not isinstance(leaf, int | float | str | bool | None) or leaf == expected_leaf


def assert_refused(program: Callable[..., Any], *arguments: Any, name: str) -> ThunderError:
    """Assert that a program is refused with an error that names a function and this program's file."""
    with pytest.raises(ThunderError) as caught:
        thunder.jit(program, data_dependent="error")(*arguments)
    error = caught.value
    assert name in str(error), str(error)
    assert error.where is not None
    assert error.where.filename == program.__code__.co_filename
    return error


def gradients(program: Callable[..., Any], *arguments: Any) -> list[torch.Tensor | None]:
    """The gradients of the floating-point arguments after a backward pass through the sum of all results."""
    leaves = [leaf for leaf in tree_flatten(arguments)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    results = [leaf for leaf in tree_flatten(program(*arguments))[0] if isinstance(leaf, torch.Tensor)]
    sum(result.sin().sum() for result in results if result.requires_grad).backward()
    return [leaf.grad for leaf in leaves]


def assert_same_gradients(program: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> Any:
    """Assert that gradients equal eager's at each of several calls; return the compiled function."""
    compiled = thunder.jit(program)
    for call in range(CALLS):
        expected = gradients(program, *arguments(call))
        actual = gradients(compiled, *arguments(call))
        assert_equal(actual, expected)
    return compiled
