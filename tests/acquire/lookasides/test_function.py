"""torch.autograd.Function in a program: its own backward is what counts, whatever its forward consists of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import ArtifactForeign, CannotReplay, NotDifferentiable
from thunder_core.transforms.functionalize import Functionalize

X = torch.tensor([1.0, 2.0, 3.0])


class DoubledInPlace(torch.autograd.Function):
    """Writes to its argument; the gradient of its backward is not that of what it writes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 10


class Shown(torch.autograd.Function):
    """A view of its argument, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 10


def result_used(x: Tensor) -> Tensor:
    return (DoubledInPlace.apply(x * 1) * 2).sum()


def argument_used(x: Tensor) -> Tensor:
    y = x * 1
    DoubledInPlace.apply(y)
    return (y * 2).sum()


def view_of_what_was_written(x: Tensor) -> Tensor:
    y = x * 1
    y.mul_(3)
    return (Shown.apply(y) * 2).sum()


WAYS: dict[str, dict[str, Any]] = {
    "torch": {},
    "inductor": {"executors": ("inductor", "torch")},
    "functionalized": {"transforms": [Functionalize()]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [result_used, argument_used, view_of_what_was_written])
def test_a_backward_of_the_users_own_is_used_where_memory_is_written_to(
    program: Callable[[Tensor], Tensor], way: str
) -> None:
    found, wanted = X.clone().requires_grad_(), X.clone().requires_grad_()
    thunder.jit(program, **WAYS[way])(found).backward()
    program(wanted).backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_a_derivative_through_a_write_with_a_backward_of_its_own_is_refused() -> None:
    with pytest.raises(NotDifferentiable, match=r"DoubledInPlace.*writes to a tensor that needs a gradient"):
        thunder.grad(result_used)(X)


class Local(Shown):
    """A function that another one takes the place of."""


def shown(x: Tensor) -> Tensor:
    return (Local.apply(x * 1) * 2).sum()


def test_an_artifact_has_the_function_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(shown)
    expected = torch.autograd.grad(compiled(x := X.clone().requires_grad_()), x)
    kept = thunder.save(compiled, tmp_path / "kept")
    torch.testing.assert_close(torch.autograd.grad(thunder.load(kept, shown, strict=True)(x), x), expected)
    for other in (Tensor, Shown):
        monkeypatch.setattr(sys.modules[__name__], "Local", other)
        with pytest.raises(ArtifactForeign, match="is not to be had here"):
            thunder.load(kept, shown, strict=True)(x)


def test_a_function_that_nothing_imports_is_not_kept(tmp_path: Path) -> None:
    class Hidden(Shown):
        pass

    compiled = thunder.jit(lambda x: Hidden.apply(x * 1))
    compiled(X)
    with pytest.raises(CannotReplay, match="cannot be kept in a file"):
        thunder.save(compiled, tmp_path / "kept")
