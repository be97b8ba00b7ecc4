"""Compares each executor's results with eager PyTorch while they are computed; add it to another recipe."""

from __future__ import annotations

from thunder_core.passes.recipe import Recipe


class Debug(Recipe):
    """Compares each executor's results with eager PyTorch while they are computed; add it to another recipe.

    A `WrongResult` names the first bound symbol whose result is wrong, and its executor. `thunder optimize` compares
    the executors once; the artifact does not include the comparison.
    """

    executors = ("debug", "torch")
