"""Factories with `requires_grad=True` make leaves in programs that autograd tracks for other reasons, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

FACTORIES: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(2, requires_grad=True),
    "zeros_like": lambda x: torch.zeros_like(x, requires_grad=True),
    "tensor": lambda x: torch.tensor([1.0, 2.0], requires_grad=True),
    "randn": lambda x: torch.randn(2, requires_grad=True),
    "asarray": lambda x: torch.asarray(x.detach(), requires_grad=True),
    "asarray of a tracked tensor": lambda x: torch.asarray(x * 2, requires_grad=True),
    "asarray of numbers": lambda x: torch.asarray([1.0, 2.0], requires_grad=True),
    "new_ones": lambda x: x.new_ones(2, requires_grad=True),
}
USES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "a product": lambda x, leaf: (x + 1, leaf * 2),
    "the leaf": lambda x, leaf: (x + 1, leaf, leaf * x),
    "a product with the input": lambda x, leaf: (leaf * x, leaf * 3),
}


def facts(tensors: tuple[Tensor, ...]) -> list[tuple[bool, bool]]:
    return [(tensor.requires_grad, tensor.is_leaf) for tensor in tensors]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("factory", FACTORIES)
def test_factory_with_requires_grad_makes_a_leaf_beside_a_tracked_input(factory: str, use: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return USES[use](x, FACTORIES[factory](x))

    fast = thunder.jit(program, executors=("torch",))
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    for _ in range(2):
        torch.manual_seed(0)
        ours = fast(x)
        torch.manual_seed(0)
        eager = program(y)
        assert facts(ours) == facts(eager)
        assert all(map(torch.equal, ours, eager))
        sum(tensor.sum() for tensor in ours).backward()  # type: ignore[union-attr]
        sum(tensor.sum() for tensor in eager).backward()  # type: ignore[union-attr]
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)


def test_factory_of_integers_with_requires_grad_raises_as_in_eager() -> None:
    def program(x: Tensor) -> Any:
        try:
            return torch.zeros(2, dtype=torch.int64, requires_grad=True)
        except RuntimeError as error:
            return x + 1, str(error)

    x = torch.ones(2)
    assert thunder.jit(program, executors=("torch",))(x)[1] == program(x)[1]
