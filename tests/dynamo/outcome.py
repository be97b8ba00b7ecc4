"""The outcome of a call: its results, gradients, written arguments, and the final random state."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves


def outcome(function, *args, training: bool = False):
    """Return the results of a call on copies of tensors, the gradients of their sum, the copies and random state."""
    torch.manual_seed(0)
    leaves = [arg.clone().requires_grad_(training) if isinstance(arg, torch.Tensor) else arg for arg in args]
    given = [leaf.clone() if training and isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    result = function(*given)
    floats = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if training and floats:
        sum(leaf.float().sum() for leaf in floats).backward()
    gradients = [leaf.grad for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return result, gradients, given, torch.get_rng_state()


def assert_same(actual, expected):
    """Assert that two outcomes are equal in values, layouts, and `requires_grad`."""
    first, second = tree_leaves(actual), tree_leaves(expected)
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        assert type(left) is type(right)
        if isinstance(left, torch.Tensor):
            assert left.requires_grad == right.requires_grad
            assert left.stride() == right.stride()
            torch.testing.assert_close(left, right)
        else:
            assert left == right
