"""Lines of the program that run as part of one line, a region or a pattern's: who holds them, and where they stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from thunder_core.inspect.subject import InspectedStage
from thunder_core.ir.listing import DELETE, LIST, Listing, Statement, is_claimed

Belongs = Callable[[str], bool]  # whether a module's path is one of those that are meant


@dataclass(frozen=True)
class HeldSymbol:
    """A line of the program, and the line of the trace that holds it, with that one's number (from 1)."""

    line: Statement
    holder: Statement
    number: int

    @property
    def inside(self) -> str:
        """The holder in a few words: `region_0 of inductor, line 3`."""
        return f"{short_name(self.holder)} of {self.holder.executor}, line {self.number}"


def short_name(line: Statement) -> str:
    """The name of what a bound symbol calls, without its module."""
    return line.symbol.rpartition(".")[2]


def held_by(line: Statement, number: int) -> Iterator[HeldSymbol]:
    """The lines of the program that a claimed line stands for; those in a region that another executor wraps too."""
    for part in line.parts if is_claimed(line.executor) else ():
        if part.file:
            yield HeldSymbol(part, line, number)
        yield from (HeldSymbol(inner.line, line, number) for inner in held_by(part, number))


def all_held(listing: Listing) -> list[HeldSymbol]:
    """Every line of the program that a line of a trace holds."""
    return [held for number, line in enumerate(listing.lines, start=1) for held in held_by(line, number)]


@dataclass(frozen=True)
class EarlierStages:
    """The stages before the one that is shown, the latest last; they are read when a line is looked for."""

    stages: Sequence[InspectedStage] = ()

    @cached_property
    def last(self) -> Mapping[str, InspectedStage]:
        """Each statement, with the last stage in which it stands by itself."""
        return {line.text: stage for stage in self.stages for line in stage.read().lines}

    def stage_of(self, line: Statement) -> InspectedStage | None:
        """The last stage in which a line is a call of its own; None where it is in none."""
        return self.last.get(line.text)


def opened(listing: Listing, belongs: Belongs) -> Listing:
    """The lines that belong to some modules; one that holds lines of theirs and of others is opened: its lines are.

    One that holds nothing else stays as it is: that is what runs. Where a line was opened no name is deleted, as the
    opened lines may read it further down.
    """
    whole = {id(line) for line in listing.lines if set(_belonging(line, belongs)) == {True}}
    mixed = {id(line) for line in listing.lines if set(_belonging(line, belongs)) == {True, False}}
    given = {name for line in listing.lines if id(line) in whole for name in line.reads}
    kept = [line for line in listing.lines if _is_kept(line, whole | mixed, given, deletes=not mixed)]
    lines = [one for line in kept for one in (_lines_of(line, belongs) if id(line) in mixed else (line,))]
    return replace(listing, lines=tuple(lines))


def is_within(module: str, owner: str) -> bool:
    """Whether a module's path is that of the owner, or leads below it."""
    return module == owner or module.startswith(f"{owner}.")


def _belonging(line: Statement, belongs: Belongs) -> Iterator[bool]:
    """Whether what a line holds belongs, line by line; or it itself, where it holds none."""
    held = [one.line.module for one in held_by(line, 0)] or [line.module]
    return map(belongs, held)


def _is_kept(line: Statement, wanted: set[int], given: set[str], *, deletes: bool) -> bool:
    """Whether a line is shown; a list, where a line that is shown takes it."""
    if line.symbol == LIST:
        return any(value.name in given for value in line.makes)
    return id(line) in wanted and (deletes or line.symbol != DELETE)


def _lines_of(line: Statement, belongs: Belongs) -> Iterator[Statement]:
    """The lines that a line holds and that belong, each with a word on what runs it."""
    origin = f"in {short_name(line)} of {line.executor}"
    for held in held_by(line, 0):
        if belongs(held.line.module):
            first = tuple(replace(value, origin=origin) for value in held.line.makes[:1])
            yield replace(held.line, makes=(*first, *held.line.makes[1:]))
