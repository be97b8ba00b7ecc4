"""Derivatives as functions: `grad`, `value_and_grad`, `vjp` and `jvp`, compiled, and composable with each other."""

from __future__ import annotations

from thunder_core.autodiff.public import lookasides
from thunder_core.autodiff.public.functions import grad, jvp, value_and_grad, vjp

__all__ = ["grad", "jvp", "lookasides", "value_and_grad", "vjp"]
