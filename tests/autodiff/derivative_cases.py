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
