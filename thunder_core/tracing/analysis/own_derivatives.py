"""Functions with a registered derivative. It is used instead of the derivatives of the function's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.tracing.ir.symbol import BoundSymbol

# Functions whose derivatives users and executors registered, and the user's `torch.autograd.Function`s.
OWN_DERIVATIVES: set[Callable[..., Any]] = set()


def has_own_derivative(function: object) -> bool:
    """Whether a user or an executor registered a derivative of a function."""
    return function in OWN_DERIVATIVES


def has_derivative_rule(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol has a registered derivative, so that the derivatives of its operations do not apply."""
    return has_own_derivative(bsym.symbol.target)
