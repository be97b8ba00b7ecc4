"""Warnings about the names in `symbolic=`: for values outside their ranges, and for values that became constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.retraces import warn_of
from thunder_core.foundation.errors import SpecializationWarning
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.frontend.acquire.named import NamedValue


def out_of_range(values: Sequence[NamedValue]) -> tuple[str, str]:
    """Return a message and a fix for the values of a call that are outside the ranges of their names."""
    listed = ", ".join(
        f"{value.argument.name} {value.value}, outside of {value.argument.range_text}" for value in values
    )
    what = f"was called with {listed}, the range in symbolic=; such calls are traced without this name"
    return what, "give the name a wider range, or do not make such calls to the compiled function"


def warn_of_shortfalls(subject: Callable[..., Any], named: Mapping[str, SymbolicArgument], program: Program) -> None:
    """Warn if a size or number that `symbolic=` names is a constant in a program, or if its range is not covered.

    Names that are only hints (those of recipes for KV caches) cause no warning.
    """
    requested = [argument for argument in named.values() if not argument.is_conditional]
    if requested and program.constant_because:
        names = ", ".join(argument.name for argument in requested)
        what = f"is traced for the exact values of {names}, although symbolic= names them: {program.constant_because}"
        warn_of(subject, what, "leave the code that needs the values uncompiled", SpecializationWarning)
    for shortfall in program.shortfalls:
        warn_of(subject, shortfall.what, shortfall.fix, SpecializationWarning)
