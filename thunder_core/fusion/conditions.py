"""Conditions on the symbols of a region, as Python: they have to hold of the sizes that it is called with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder_core.ir.proxy import NumberProxy
from thunder_core.ir.sizes import hint_of

# The functions that expressions of sizes call, as PyTorch has them for symbolic integers.
FUNCTIONS: Mapping[str, Any] = {"max": torch.sym_max, "min": torch.sym_min, "math": math, "int": int}
Sizes = Mapping[str, Any]
NO_SIZES: Sizes = {}


def named_sizes(symbols: Sequence[NumberProxy]) -> dict[str, Any]:
    """The symbols of a region by the names that texts have for them: `s0`, `s1`, ..."""
    return {f"s{place}": proxy.value for place, proxy in enumerate(symbols)}


def size_of(text: str, sizes: Sizes) -> Any:
    """The value of an expression of sizes; raises `NameError` where it has other names.

    The text is a compiler's, or comes from a file that was verified.
    """
    return eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(sizes))  # noqa: S307


def unmet_at_hints(conditions: Sequence[str], symbols: Sequence[NumberProxy]) -> str:
    """The first condition that does not hold for the values that the symbols had while tracing; empty for none."""
    sizes = named_sizes(symbols)
    values = {name: hint_of(size) for name, size in sizes.items()}
    elements = (f"{name} >= 1" for name, size in sizes.items() if size.node.expr.is_positive)
    return next((text for text in (*elements, *conditions) if not size_of(text, values)), "")


def unmet(conditions: Sequence[str], symbols: Sequence[NumberProxy]) -> str:
    """The first condition that does not hold, or empty: then all of them are constraints of the program from now on.

    Sizes have to be above zero besides, as a compiler takes for granted: some operations refuse what has no elements.
    """
    failing = unmet_at_hints(conditions, symbols)
    if not failing:
        sizes = named_sizes(symbols)
        for size in sizes.values():
            size.node.shape_env.require_elements(size)
        for text in conditions:
            bool(size_of(text, sizes))
    return failing
