"""The backward of a loaded program reads the current values of objects outside of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder


class Level:
    """A number that the backward reads."""

    value = 2.0


LEVELS = {"outer": [1.0, 2.0]}


class FromClass(torch.autograd.Function):
    """A function whose backward reads a class attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return twice the argument."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Multiply by the attribute."""
        return gradient * Level.value


class FromContainers(FromClass):
    """A function whose backward reads an item of a list in a dict."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Multiply by the item."""
        return gradient * LEVELS["outer"][1]


class Layer(nn.Module):
    """A module that applies a function."""

    kind: Any = FromClass

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.kind.apply(x).sin()


class LayerOfContainers(Layer):
    """A module that applies a function that reads containers."""

    kind = FromContainers


def apply_function(x: Tensor) -> Tensor:
    return FromClass.apply(x).sin()


def set_levels(value: float) -> None:
    Level.value = LEVELS["outer"][1] = value


def gradients(run: Any) -> list[Tensor | None]:
    """Return gradients, with changes of the value before a call, and between a call and its backward."""
    found = []
    for before, between in ((2.0, 2.0), (2.0, 5.0), (5.0, 5.0), (5.0, 2.0), (2.0, 2.0)):
        set_levels(before)
        x = torch.ones(3).requires_grad_()
        result = run(x)
        set_levels(between)
        result.sum().backward()
        found.append(x.grad)
    return found


@pytest.mark.parametrize("subject", [apply_function, Layer(), LayerOfContainers()], ids=lambda it: type(it).__name__)
def test_loaded_backward_reads_current_values(subject: Any, tmp_path: Path) -> None:
    set_levels(2.0)
    compiled = thunder.jit(subject)
    compiled(torch.ones(3).requires_grad_()).sum().backward()
    loaded = thunder.load(thunder.save(compiled, tmp_path / "a"), subject)
    torch.testing.assert_close(gradients(loaded), gradients(subject), rtol=0, atol=0)
    set_levels(2.0)
    assert thunder.last_backward_reason(compiled) == ""
