"""Every torch.nn.Module: drops repeated and dead code, fuses regions with Inductor, and frees memory early."""

from __future__ import annotations

from typing import ClassVar

from thunder_core.passes.recipe import Recipe


class Default(Recipe):
    """Every torch.nn.Module: drops repeated and dead code, fuses regions with Inductor, and frees memory early."""

    executors: ClassVar[tuple[str, ...]] = ("sdpa", "packed-linear", "packed-attention", "inductor", "torch")
