"""Programs and their uses in autograd's graph: `case` registers a use, which runs in eager PyTorch and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Use = Callable[[Callable[..., Any]], list[Any]]


@dataclass(frozen=True)
class Case:
    """A program and its use: `use(program)` returns everything that is compared."""

    program: Callable[..., Any]
    use: Use
    derived: bool = True


CASES: dict[str, Case] = {}


def case(program: Callable[..., Any], *, derived: bool = True) -> Callable[[Use], Use]:
    """Register a use of a program by name."""

    def register(use: Use) -> Use:
        CASES[use.__name__] = Case(program, use, derived)
        return use

    return register


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * torch.tanh(y).exp() + x


def beside_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.sum()
    return (x.tanh() if total > -100 else x), x.nonzero()


def through_a_new_leaf(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.detach() * 2
    y.requires_grad = True
    return torch.tanh(y @ weight)


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x @ y
    return {"a": hidden.exp(), "b": [hidden.argmax(-1), x.detach() * 2, y.sin()], "c": (3, None)}


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x * y
    return hidden, hidden[0], hidden.T.unsqueeze(0), x.view(-1), y, x


def norm_in_training(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, mean, variance, training=True)


def counting(x: torch.Tensor, y: torch.Tensor, calls: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    calls.add_(1)
    return x.exp(), (x * y).sin()
