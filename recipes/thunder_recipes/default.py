"""Every torch.nn.Module: drops repeated and dead code, fuses regions with Inductor, and frees memory early."""

from __future__ import annotations

from typing import ClassVar

from thunder_core.passes.recipe import Recipe
from thunder_core.passes.transforms.selected_rows import SelectRowsEarly
from thunder_core.tracing.extension.transform import Transform


class Default(Recipe):
    """Every torch.nn.Module: drops repeated and dead code, fuses regions with Inductor, and frees memory early.

    On a CPU, a program that reads only one row of hidden states, such as the first token, computes only this row in its
    last layers.
    """

    executors: ClassVar[tuple[str, ...]] = ("sdpa", "packed-linear", "packed-attention", "inductor", "torch")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms, including `SelectRowsEarly`."""
        return (*super().setup_transforms(), SelectRowsEarly())
