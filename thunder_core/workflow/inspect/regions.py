"""Statements of the program that run inside another statement of the trace, such as a fused region."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from thunder_core.tracing.ir.listing import DELETE, LIST, Listing, Statement, is_claimed
from thunder_core.workflow.inspect.subject import InspectedStage

IsSelected = Callable[[str], bool]  # whether a module's path is selected


@dataclass(frozen=True)
class NestedStatement:
    """A statement of the program, the statement `holder` of the trace that contains it, and the holder's number."""

    statement: Statement
    holder: Statement
    number: int

    @property
    def outer(self) -> str:
        """The outer statement in a few words: `region_0 of inductor, line 3`."""
        return f"{short_name(self.holder)} of {self.holder.executor}, line {self.number}"


def short_name(statement: Statement) -> str:
    """Return the name of the function that a bound symbol calls, without its module."""
    return statement.symbol.rpartition(".")[2]


def nested_statements(statement: Statement, number: int) -> Iterator[NestedStatement]:
    """Yield the statements of the program in a claimed statement, including statements in nested regions."""
    for part in statement.parts if is_claimed(statement.executor) else ():
        if part.file:
            yield NestedStatement(part, statement, number)
        yield from (NestedStatement(inner.statement, statement, number) for inner in nested_statements(part, number))


def all_nested_statements(listing: Listing) -> list[NestedStatement]:
    """Return every statement of the program that a statement of a trace contains."""
    return [
        region_statement
        for number, statement in enumerate(listing.lines, start=1)
        for region_statement in nested_statements(statement, number)
    ]


@dataclass(frozen=True)
class EarlierStages:
    """The stages before the displayed stage, the latest last; they are read when a statement is searched."""

    stages: Sequence[InspectedStage] = ()

    @cached_property
    def last(self) -> Mapping[str, InspectedStage]:
        """Each statement's text, with the last stage in which the statement is at the top level."""
        return {statement.text: stage for stage in self.stages for statement in stage.read().lines}

    def stage_of(self, statement: Statement) -> InspectedStage | None:
        """Return the last stage in which a statement is at the top level; None if there is none."""
        return self.last.get(statement.text)


def open_regions(listing: Listing, belongs: IsSelected) -> Listing:
    """Return the selected statements; a region that also contains other statements is replaced by its statements.

    A region with only selected statements stays as it is, because this is the code that runs. If a region was replaced,
    the `del` statements are omitted, because statements of the region may read the names later.
    """
    belonging = {id(statement) for statement in listing.lines if set(_are_selected(statement, belongs)) == {True}}
    mixed = {id(statement) for statement in listing.lines if set(_are_selected(statement, belongs)) == {True, False}}
    names_read = {name for statement in listing.lines if id(statement) in belonging for name in statement.reads}
    displayed = [
        statement
        for statement in listing.lines
        if _is_kept(statement, belonging | mixed, names_read, deletes=not mixed)
    ]
    statements = [
        shown
        for statement in displayed
        for shown in (_statements_of(statement, belongs) if id(statement) in mixed else (statement,))
    ]
    return replace(listing, lines=tuple(statements))


def is_within(module: str, owner: str) -> bool:
    """Whether a module's path is the owner's path or below it."""
    return module == owner or module.startswith(f"{owner}.")


def _are_selected(statement: Statement, belongs: IsSelected) -> Iterator[bool]:
    """Yield for each inner statement whether it is selected; for a statement without inner ones, for itself."""
    modules = [region_statement.statement.module for region_statement in nested_statements(statement, 0)] or [
        statement.module
    ]
    return map(belongs, modules)


def _is_kept(statement: Statement, statement_ids: set[int], names_read: set[str], *, deletes: bool) -> bool:
    """Whether a statement is displayed; a list is displayed if a displayed statement reads it."""
    if statement.symbol == LIST:
        return any(value.name in names_read for value in statement.makes)
    return id(statement) in statement_ids and (deletes or statement.symbol != DELETE)


def _statements_of(statement: Statement, belongs: IsSelected) -> Iterator[Statement]:
    """Yield the selected statements inside a statement, each with a note on the executor that runs it."""
    origin = f"in {short_name(statement)} of {statement.executor}"
    for region_statement in nested_statements(statement, 0):
        if belongs(region_statement.statement.module):
            first = tuple(replace(value, origin=origin) for value in region_statement.statement.makes[:1])
            yield replace(region_statement.statement, makes=(*first, *region_statement.statement.makes[1:]))
