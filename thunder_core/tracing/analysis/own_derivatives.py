"""Functions with a derivative of their own, so that the operations beneath them do not tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.tracing.ir.symbol import BoundSymbol

# The functions that users and executors gave derivatives to, and the user's `torch.autograd.Function`s.
OWN_DERIVATIVES: set[Callable[..., Any]] = set()


def has_own_derivative(function: object) -> bool:
    """Whether a function has a derivative of its own, a user's."""
    return function in OWN_DERIVATIVES


def has_derivative_rule(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol has a derivative rule of its own, so that its operations' derivatives do not apply."""
    return has_own_derivative(bsym.symbol.target)
