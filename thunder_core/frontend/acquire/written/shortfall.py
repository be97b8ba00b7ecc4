"""Shortfalls: of sizes and numbers that were named as symbolic, those of whose values a program does not serve all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy

from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.frontend.acquire.written.constraints import IntegerRange, Merged, merged_constraints, origin_text
from thunder_core.tracing.capture.symbolic.shape_env import Origin
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.ir.sizes import symbols_of, text_of

ASKS = "do not format it, hash it or loop that many times, because this makes it a constant"


@dataclass(frozen=True)
class Shortfall:
    """A named size or number of which a program serves not all values: what it serves, who needed that, what to do."""

    name: str
    what: str
    fix: str


def shortfalls(sizes: SymbolicSizes, named: Mapping[str, SymbolicArgument]) -> Iterator[Shortfall]:
    """The shortfalls of a recording, by the paths of what was named; names that are hints alone have none."""
    merged = merged_constraints(sizes)
    for symbol, interval in merged.intervals.items():
        argument = named.get(str(sizes.sources[symbol]))
        if argument is not None and not argument.is_conditional:
            yield from _of_symbol(argument, interval, dict(_conditions(merged, symbol, argument.name)))


def _conditions(merged: Merged, symbol: sympy.Symbol, name: str) -> Iterator[tuple[str, Origin]]:
    """The conditions on one symbol alone that narrow its range, with its name in place of the symbol."""
    interval = merged.intervals[symbol]
    if interval.where or interval.excluded:
        yield from interval.texts(name)
    for one in merged.others.values():
        if symbols_of(one.condition) == [symbol]:
            yield text_of(one.condition, {symbol: name}), one.where


def _of_symbol(
    argument: SymbolicArgument, interval: IntegerRange, conditions: dict[str, Origin]
) -> Iterator[Shortfall]:
    told = "; ".join(f"{text}, {origin_text(where)}" for text, where in conditions.items())
    if interval.lower is not None and interval.lower == interval.upper:
        what = f"is traced for one value of {argument.name}, although symbolic= names it: {told}"
        yield Shortfall(argument.name, what, f"{ASKS}; or leave {argument.name} out of symbolic=")
    elif conditions and argument.has_range:
        what = (
            f"has a program that does not serve all of {argument.name}, {argument.range_text}, as symbolic= says, "
            f"but {told}; other values get additional programs"
        )
        yield Shortfall(argument.name, what, _narrower(argument, interval))


def _narrower(argument: SymbolicArgument, interval: IntegerRange) -> str:
    """Return the advice: not to branch on it, and the range that is left where it is another than the given one."""
    decide = "do not branch on it or on values computed from it"
    lower = 1 if argument.lower is None and argument.path.dimension is not None else argument.lower
    if (interval.lower, interval.upper) == (lower, argument.upper):
        return decide
    return f"{decide}, or name the served range: {{{argument.name!r}: ({interval.lower}, {interval.upper})}}"
