"""Select parts of a listing: the statements of a module, or the statements that match a pattern."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_core.foundation.errors import BadOption, NoSuchTrace
from thunder_core.tracing.ir.layout import at_level, result_comment, source_line
from thunder_core.tracing.ir.listing import DELETE, LIST, Listing, Statement, Value
from thunder_core.workflow.inspect.regions import (
    EarlierStages,
    IsSelected,
    all_nested_statements,
    is_within,
    nested_statements,
    open_regions,
)

NO_STAGES = EarlierStages()


@dataclass(frozen=True)
class StatementMatch:
    """A statement that matches a pattern: its number in the trace (from 1), its text, its metadata and its module.

    A statement inside another statement has the number of the outer statement. `outer` describes the outer statement,
    and `stage` is the last stage in which the statement was at the top level.
    """

    number: int
    text: str
    metadata: str
    module: str
    source_line: str
    outer: str = ""
    stage: str = ""


def matches(
    listing: Listing, pattern: str, level: str = "torch", earlier: EarlierStages = NO_STAGES
) -> Iterator[StatementMatch]:
    """Yield the statements whose text, metadata, module or source line matches; raise `BadOption` for a bad pattern.

    Statements inside other statements, which were at the top level in an earlier stage, are searched too.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise BadOption(
            f"--grep {pattern!r} is not a regular expression: {error}", fix="escape special characters"
        ) from error
    for number, statement in enumerate(listing.lines, start=1):
        yield from matching(
            statement, expression, level, StatementMatch(number, "", "", statement.module, source_line(statement))
        )
        for region_statement in nested_statements(statement, number):
            empty = StatementMatch(
                number,
                "",
                "",
                region_statement.statement.module,
                source_line(region_statement.statement),
                region_statement.outer,
            )
            for match in matching(region_statement.statement, expression, level, empty):
                stage = earlier.stage_of(region_statement.statement)
                yield replace(match, stage=stage.short if stage else "")


def matching(
    statement: Statement, pattern: re.Pattern[str], level: str, match: StatementMatch
) -> Iterator[StatementMatch]:
    """Yield a match for each part of a statement, at this level of detail, that matches the pattern."""
    claimed = any(part.file for part in statement.parts)
    for part in (statement,) if claimed else at_level(statement, level):
        about = () if statement.symbol == DELETE else (match.source_line, part.derives or statement.derives)
        if any(pattern.search(text) for text in (part.text, result_comment(part), match.module, *about)):
            yield replace(match, text=part.text, metadata=result_comment(part))


def module_lines(listing: Listing, module: str, earlier: EarlierStages = NO_STAGES) -> Listing:
    """Return the statements of a module and its submodules as a function from their inputs to their outputs.

    A region that also contains statements of other modules is replaced by its statements. `layers.0` means
    `model.layers.0` if no module has the path `layers.0`. If no statement belongs to the module, raises `NoSuchTrace`,
    which names the last earlier stage with statements of the module.
    """
    belongs = belonging_to(module, modules(listing))
    shown = open_regions(listing, belongs)
    if not shown.lines:
        raise removed_module_error(listing, module, earlier) or unknown_module_error(listing, strip_module(module))
    inputs, results = boundary(listing, shown.lines)
    names = ", ".join(value.name for value in results)
    returns = f"({names},)" if len(results) == 1 else f"({names})"
    return replace(shown, inputs=inputs, results=results, returns=returns)


def belonging_to(module: str, paths: Sequence[str]) -> IsSelected:
    """Return a selector for a module and its submodules; if no path begins with it, for paths that contain it."""
    stripped = strip_module(module)
    if any(is_within(path, stripped) for path in paths):
        return lambda path: is_within(path, stripped)
    return lambda path: f".{stripped}." in f".{path}."


def strip_module(module: str) -> str:
    """Return a module's path as in statements, without a leading `module.`."""
    return module.removeprefix("module.").strip(".")


def modules(listing: Listing) -> list[str]:
    """Return the paths of the modules of all statements, including statements inside other statements."""
    statements = (*listing.lines, *(region_statement.statement for region_statement in all_nested_statements(listing)))
    return sorted({statement.module for statement in statements if statement.module})


def boundary(listing: Listing, statements: tuple[Statement, ...]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the values that some statements read from other statements, and the values that others read from them.

    The statements may be inside a region of the listing; the rest of the region then counts as other statements.
    """
    every = list(expand_regions(listing))
    values = {value.name: value for statement in (*listing.lines, *every) for value in statement.makes}
    values |= {value.name: value for value in listing.inputs}
    outputs = {value.name for statement in statements for value in statement.makes}
    inside = {
        part.text
        for statement in statements
        for part in (statement, *(region_statement.statement for region_statement in nested_statements(statement, 0)))
    }
    names_read = [name for statement in statements for name in statement.reads if statement.symbol != DELETE]
    read_outside = {
        name
        for statement in every
        if statement.text not in inside and statement.symbol != DELETE
        for name in statement.reads
    }
    read_outside |= {value.name for value in listing.results}
    inputs = tuple(values.get(name, Value(name)) for name in dict.fromkeys(names_read) if name not in outputs)
    results = tuple(values[name] for name in values if name in outputs and name in read_outside)
    return inputs, results


def expand_regions(listing: Listing) -> Iterator[Statement]:
    """Yield the statements of a listing, with regions replaced by their contents and without the regions' lists."""
    holding = [statement for statement in listing.lines if any(nested_statements(statement, 0))]
    names_read = {name for statement in holding for name in statement.reads}
    for statement in listing.lines:
        if statement.symbol == LIST and any(value.name in names_read for value in statement.makes):
            continue
        yield from [region_statement.statement for region_statement in nested_statements(statement, 0)] or [statement]


def removed_module_error(listing: Listing, module: str, earlier: EarlierStages) -> NoSuchTrace | None:
    """Return the error for a module whose statements only an earlier stage has; None if no stage has statements."""
    for stage in reversed(earlier.stages):
        paths = modules(stage.read())
        if any(map(belonging_to(module, paths), paths)):
            return NoSuchTrace(
                f"the {listing.name} trace has no line of {strip_module(module)!r} at this stage",
                fix=f"use --stage {stage.facts.number} ({stage.made_by}), the last stage with such lines",
            )
    return None


def unknown_module_error(listing: Listing, module: str) -> NoSuchTrace:
    """Return the error for a module without statements, with the most similar module paths."""
    paths = modules(listing)
    near = difflib.get_close_matches(module, paths, n=3, cutoff=0.4) or paths[:3]
    return NoSuchTrace(
        f"no line of the {listing.name} trace belongs to a module {module!r}",
        fix=f"name a module's path, for example: {', '.join(near)}" if near else "this trace names no modules",
    )
