"""Derivatives as functions: `grad`, `value_and_grad`, `vjp` and `jvp`, compiled, and composable with each other."""

from __future__ import annotations

from thunder_core.derivatives import inside
from thunder_core.derivatives.functions import grad, jvp, value_and_grad, vjp

__all__ = ["grad", "inside", "jvp", "value_and_grad", "vjp"]
