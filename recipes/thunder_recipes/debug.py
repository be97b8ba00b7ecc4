"""Comparison of each executor's results with eager PyTorch as they are computed; to be added to another recipe."""

from __future__ import annotations

from thunder_core.recipe import Recipe


class Debug(Recipe):
    """Comparison of each executor's results with eager PyTorch as they are computed; to be added to another recipe.

    The first bound symbol whose result is wrong is named, with its executor, by a `WrongResult`; `thunder optimize` has
    executors compared once, and its artifact is without the comparison.
    """

    executors = ("debug", "torch")
