"""Compiled derivatives as functions: `grad`, `value_and_grad`, `vjp` and `jvp`, which compose with each other."""

from __future__ import annotations

from thunder_core.compilation.gradients import lookasides
from thunder_core.compilation.gradients.functions import grad, jvp, value_and_grad, vjp

__all__ = ["grad", "jvp", "lookasides", "value_and_grad", "vjp"]
