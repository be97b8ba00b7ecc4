"""A call whose values differ from the traced ones is undone before it is traced again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def transposed_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    return x, x[x > 0].nonzero()


def test_an_expanded_tensor_that_was_transposed_in_place_is_restored() -> None:
    """An expanded tensor cannot be written as a whole: PyTorch refuses a copy into elements that share memory."""
    compiled = thunder.jit(transposed_in_place, executors=("torch",), cache="symbolic values")
    for seed, rows in enumerate((2, 8, 3)):
        data = torch.randn(1, rows + 4, generator=torch.Generator().manual_seed(seed))
        expected = transposed_in_place(data.clone().expand(rows, -1))
        found = compiled(data.clone().expand(rows, -1))
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.stride() == wanted.stride()
            torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


class Momentum(torch.nn.Module):
    """A layer and a slow copy of it, whose data the program replaces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fast, self.slow = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.fast.weight.add_(1)
            self.slow.weight.sub_(1)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))


class ValueOfOthers(Momentum):
    """Reads a value that does not depend on the replaced data."""

    def forward(self, x: Tensor) -> Tensor:
        for fast, slow in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1
        start = int(self.place)
        self.place[0] = (start + 1) % 3
        return self.fast(x) + self.slow(x).detach() * start


class ValueOfReplacedData(Momentum):
    """Branches on the replaced data, before and after another replacement."""

    def forward(self, x: Tensor) -> Tensor:
        self.slow.weight.data = self.slow.weight.data * 0.5 + x
        result = self.slow(x) if self.slow.weight.sum() > 0 else self.slow(x) - 1
        if result.max() > 1:
            self.slow.weight.data = self.slow.weight.data.clone()
            self.slow.weight.data.mul_(0.5)
        return result + self.slow.weight.mean().item()


class DataOfAnotherShape(Momentum):
    """Branches on data of a new shape."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen.data = torch.cat([self.seen.data, x[0, :1].detach()])
        return x * self.seen.sum() if self.seen.sum() > 0 else x - len(self.seen)


class ExchangedData(Momentum):
    """Exchanges the data of two parameters."""

    def forward(self, x: Tensor) -> Tensor:
        self.fast.weight.data, self.slow.weight.data = self.slow.weight.data, self.fast.weight.data
        return self.fast(x) * 2 if self.fast.weight.sum() > 0 else self.slow(x) * 3


@pytest.mark.parametrize("kind", [ValueOfOthers, ValueOfReplacedData, DataOfAnotherShape, ExchangedData])
def test_values_are_known_after_the_data_of_a_tensor_is_replaced(kind: type[Momentum]) -> None:
    ours, theirs = kind(), kind()
    compiled = thunder.jit(ours, executors=("torch",))
    held = [(model.slow.weight.data, model.slow.weight.data_ptr()) for model in (ours, theirs)]
    for step in range(6):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(step)) + (-1) ** step
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        torch.testing.assert_close(held[0][0], held[1][0])
    assert thunder.cache_misses(compiled) >= 2


def doubled_before_a_draw(x: Tensor, weight: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1 if torch.rand(()) < 0.5 else x * weight


def weighted_before_a_draw(x: Tensor, weight: Tensor) -> Tensor:
    x.mul_(weight)
    return x.sin() if torch.rand(()) < 0.5 else x * 3


def transposed_before_a_draw(x: Tensor, weight: Tensor) -> Tensor:
    x.t_()
    x.mul_(2)
    return x.sin() if torch.rand(()) < 0.5 else x * weight


HISTORIES = {
    "computed": lambda leaf: leaf * 1,
    "view": lambda leaf: (leaf * 1)[:],
    "row": lambda leaf: (leaf * 1).view(3, 3),
    "constant": lambda leaf: leaf.detach().clone(),
    "view of a constant": lambda leaf: leaf.detach().clone()[:],
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("program", [doubled_before_a_draw, weighted_before_a_draw, transposed_before_a_draw])
def test_a_write_that_is_undone_leaves_no_gradient(program: Callable[..., Tensor], name: str) -> None:
    """The first program expects one outcome of the draw; its write was kept in the history of its input."""
    compiled, results = thunder.jit(program, executors=("torch",)), []
    for run in (program, compiled):
        torch.manual_seed(3)
        for _ in range(8):
            leaf, weight = torch.arange(9.0).view(3, 3).requires_grad_(), torch.ones(3, 3, requires_grad=True)
            x = HISTORIES[name](leaf)
            output = run(x, weight)
            if output.requires_grad:
                (output.sum() + x.sum()).backward()
            results.append((output, x.requires_grad, leaf.grad, weight.grad))
    for found, expected in zip(results[8:], results[:8], strict=True):
        assert found[1] == expected[1]
        torch.testing.assert_close([found[0], *found[2:]], [expected[0], *expected[2:]])
