"""`grad`, `value_and_grad`, `vjp` and `jvp`: they return compiled derivatives of functions, and can be combined."""

from __future__ import annotations

from thunder_core.compilation.gradients import lookasides
from thunder_core.compilation.gradients.functions import grad, jvp, value_and_grad, vjp

__all__ = ["grad", "jvp", "lookasides", "value_and_grad", "vjp"]
