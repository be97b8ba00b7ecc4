"""Shortfalls: values of symbolic sizes and numbers that the user requested and that a program does not serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy

from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.frontend.acquire.codegen.constraints import (
    IntegerRange,
    MergedConstraints,
    merged_constraints,
    origin_text,
)
from thunder_core.tracing.capture.symbolic.shape_env import Origin
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.ir.sizes import symbols_of, text_of

KEEP_SYMBOLIC = "do not format it, hash it or loop that many times, because this makes it a constant"


@dataclass(frozen=True)
class Shortfall:
    """A named size or number, some of whose values a program does not serve.

    `what` describes the values that the program serves and the reason, and `fix` is the advice.
    """

    name: str
    what: str
    fix: str


def shortfalls(sizes: SymbolicSizes, named: Mapping[str, SymbolicArgument]) -> Iterator[Shortfall]:
    """Yield the shortfalls of a recording. `named` maps paths to names. Names that are only hints are left out."""
    merged = merged_constraints(sizes)
    for symbol, interval in merged.intervals.items():
        argument = named.get(str(sizes.sources[symbol]))
        if argument is not None and not argument.is_conditional:
            yield from _shortfall_of_symbol(argument, interval, dict(_conditions(merged, symbol, argument.name)))


def _conditions(merged: MergedConstraints, symbol: sympy.Symbol, name: str) -> Iterator[tuple[str, Origin]]:
    """Yield the conditions on this symbol alone, with `name` in place of the symbol, each with its origin."""
    interval = merged.intervals[symbol]
    if interval.where or interval.excluded:
        yield from interval.texts(name)
    for constraint in merged.other_constraints.values():
        if symbols_of(constraint.condition) == [symbol]:
            yield text_of(constraint.condition, {symbol: name}), constraint.where


def _shortfall_of_symbol(
    argument: SymbolicArgument, interval: IntegerRange, conditions: dict[str, Origin]
) -> Iterator[Shortfall]:
    reasons = "; ".join(f"{text}, {origin_text(where)}" for text, where in conditions.items())
    if interval.lower is not None and interval.lower == interval.upper:
        what = f"is traced for one value of {argument.name}, although symbolic= names it: {reasons}"
        yield Shortfall(argument.name, what, f"{KEEP_SYMBOLIC}; or leave {argument.name} out of symbolic=")
    elif conditions and argument.has_range:
        what = (
            f"has a program that does not serve all of {argument.name}, {argument.range_text}, as symbolic= says, "
            f"but {reasons}; other values get additional programs"
        )
        yield Shortfall(argument.name, what, _advice(argument, interval))


def _advice(argument: SymbolicArgument, interval: IntegerRange) -> str:
    """Return the advice not to branch on the value, and the served range if it differs from the given range."""
    advice = "do not branch on it or on values computed from it"
    lower = 1 if argument.lower is None and argument.path.dimension is not None else argument.lower
    if (interval.lower, interval.upper) == (lower, argument.upper):
        return advice
    return f"{advice}, or name the served range: {{{argument.name!r}: ({interval.lower}, {interval.upper})}}"
