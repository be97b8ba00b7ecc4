"""Statements of the program that run as part of another one, a region or a pattern's: who holds them, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from thunder_core.tracing.ir.listing import DELETE, LIST, Listing, Statement, is_claimed
from thunder_core.workflow.inspect.subject import InspectedStage

Belongs = Callable[[str], bool]  # whether a module's path is one of those that are meant


@dataclass(frozen=True)
class HeldStatement:
    """A statement of the program, and the one of the trace that holds it, with that one's number (from 1)."""

    statement: Statement
    holder: Statement
    number: int

    @property
    def inside(self) -> str:
        """The holder in a few words: `region_0 of inductor, line 3`."""
        return f"{short_name(self.holder)} of {self.holder.executor}, line {self.number}"


def short_name(statement: Statement) -> str:
    """The name of what a bound symbol calls, without its module."""
    return statement.symbol.rpartition(".")[2]


def held_by(statement: Statement, number: int) -> Iterator[HeldStatement]:
    """The statements of the program in a claimed statement; those in a region that another executor wraps too."""
    for part in statement.parts if is_claimed(statement.executor) else ():
        if part.file:
            yield HeldStatement(part, statement, number)
        yield from (HeldStatement(inner.statement, statement, number) for inner in held_by(part, number))


def all_held(listing: Listing) -> list[HeldStatement]:
    """Every statement of the program that a statement of a trace holds."""
    return [held for number, statement in enumerate(listing.lines, start=1) for held in held_by(statement, number)]


@dataclass(frozen=True)
class EarlierStages:
    """The stages before the one that is shown, the latest last; they are read when a statement is looked for."""

    stages: Sequence[InspectedStage] = ()

    @cached_property
    def last(self) -> Mapping[str, InspectedStage]:
        """Each statement, with the last stage in which it stands by itself."""
        return {statement.text: stage for stage in self.stages for statement in stage.read().lines}

    def stage_of(self, statement: Statement) -> InspectedStage | None:
        """The last stage in which a statement is a call of its own; None where it is in none."""
        return self.last.get(statement.text)


def opened(listing: Listing, belongs: Belongs) -> Listing:
    """The statements that belong to some modules, with those that others hold which belong to further modules too.

    One that holds nothing else stays as it is: that is what runs. Where one was opened no name is deleted, as the
    statements in it may read it further down.
    """
    belonging = {id(statement) for statement in listing.lines if set(_belonging(statement, belongs)) == {True}}
    mixed = {id(statement) for statement in listing.lines if set(_belonging(statement, belongs)) == {True, False}}
    names_read = {name for statement in listing.lines if id(statement) in belonging for name in statement.reads}
    kept = [
        statement
        for statement in listing.lines
        if _is_kept(statement, belonging | mixed, names_read, deletes=not mixed)
    ]
    statements = [
        shown
        for statement in kept
        for shown in (_statements_of(statement, belongs) if id(statement) in mixed else (statement,))
    ]
    return replace(listing, lines=tuple(statements))


def is_within(module: str, owner: str) -> bool:
    """Whether a module's path is that of the owner, or leads below it."""
    return module == owner or module.startswith(f"{owner}.")


def _belonging(statement: Statement, belongs: Belongs) -> Iterator[bool]:
    """Whether what a statement holds belongs, one by one; or it itself, where it holds none."""
    modules = [held.statement.module for held in held_by(statement, 0)] or [statement.module]
    return map(belongs, modules)


def _is_kept(statement: Statement, wanted: set[int], names_read: set[str], *, deletes: bool) -> bool:
    """Whether a statement is shown; a list, where a statement that is shown takes it."""
    if statement.symbol == LIST:
        return any(value.name in names_read for value in statement.makes)
    return id(statement) in wanted and (deletes or statement.symbol != DELETE)


def _statements_of(statement: Statement, belongs: Belongs) -> Iterator[Statement]:
    """The statements that another one holds and that belong, each with a word on what runs it."""
    origin = f"in {short_name(statement)} of {statement.executor}"
    for held in held_by(statement, 0):
        if belongs(held.statement.module):
            first = tuple(replace(value, origin=origin) for value in held.statement.makes[:1])
            yield replace(held.statement, makes=(*first, *held.statement.makes[1:]))
