"""Every torch.nn.Module: repeated and dead code dropped, regions fused by Inductor, memory freed early."""

from __future__ import annotations

from thunder_core.recipe import Recipe


class Default(Recipe):
    """Every torch.nn.Module: repeated and dead code dropped, regions fused by Inductor, memory freed early."""

    executors = ("sdpa", "inductor", "torch")
