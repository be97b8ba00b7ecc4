"""Every torch.nn.Module: repeated and dead code dropped, regions fused by Inductor, memory freed early."""

from __future__ import annotations

from typing import ClassVar

from thunder_core.recipe import Recipe


class Default(Recipe):
    """Every torch.nn.Module: repeated and dead code dropped, regions fused by Inductor, memory freed early."""

    executors: ClassVar[tuple[str, ...]] = ("sdpa", "inductor", "torch")
