"""Unreduced gradients are reduced at the end of a backward, also after a backward that failed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_core.backend.parallel.unreduced_gradients import (
    Synchronization,
    UnreducedGradient,
    register_accumulation_hook,
    unsharded_leaf,
)


def unreduced_gradient(reduce: Any) -> UnreducedGradient:
    """An unreduced gradient of a parameter of two numbers, with a hook."""
    synchronization = Synchronization()
    held = UnreducedGradient(unsharded_leaf(torch.zeros(1), 2, True), reduce, None, synchronization)
    register_accumulation_hook(held)
    synchronization.unreduced_gradients["weight"] = held
    return held


def run_backward(held: UnreducedGradient, *, fails: bool) -> None:
    """Run a backward that accumulates a gradient of ones, and then fails in a hook of the user."""
    x = torch.ones(2, requires_grad=True) * 1

    def refuse(gradient: torch.Tensor) -> None:
        raise RuntimeError("the user's hook")

    if fails:
        x.register_hook(refuse)  # type: ignore[no-untyped-call]
    early = x.sum()  # autograd reaches what was made first last
    (early + (held.unsharded * 1).sum()).backward()  # type: ignore[no-untyped-call]


def test_gradients_of_a_failed_backward_are_reduced_by_the_next() -> None:
    reduced: list[list[float]] = []
    held = unreduced_gradient(lambda gradient: reduced.append(gradient.tolist()))
    with pytest.raises(RuntimeError, match="the user's hook"):
        run_backward(held, fails=True)
    assert reduced == []
    run_backward(held, fails=False)
    run_backward(held, fails=False)
    assert reduced == [[2.0, 2.0], [1.0, 1.0]]
    assert not held.synchronization.pending


def test_a_gradient_whose_reduction_fails_is_kept() -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise RuntimeError("the group is gone")

    held = unreduced_gradient(refuse)
    with pytest.raises(RuntimeError, match="the group is gone"):
        run_backward(held, fails=False)
    assert held.gradient is not None
    assert held.gradient.tolist() == [1.0, 1.0]
