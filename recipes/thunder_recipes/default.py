"""Every torch.nn.Module: repeated and dead code dropped, memory freed early, eager kernels."""

from __future__ import annotations

from thunder_core.recipe import Recipe


class Default(Recipe):
    """Every torch.nn.Module: repeated and dead code dropped, memory freed early, eager kernels."""

    executors = ("sdpa", "inductor", "torch")
