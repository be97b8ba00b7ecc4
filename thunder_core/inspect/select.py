"""Parts of a listing: the lines of a module, and those that a pattern matches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_core.errors import BadOption, NoSuchTrace
from thunder_core.inspect.regions import Belongs, EarlierStages, all_held, held_by, is_within, opened
from thunder_core.ir.layout import at_level, place, told
from thunder_core.ir.listing import DELETE, LIST, Listing, Statement, Value

NO_STAGES = EarlierStages()


@dataclass(frozen=True)
class LineMatch:
    """A line that a pattern matches: its number in the trace (from 1), the statement, and whose it is.

    A line that runs as part of another has that one's number, `inside` says what holds it, and `stage` where it was a
    call of its own.
    """

    number: int
    text: str
    told: str
    module: str
    place: str
    inside: str = ""
    stage: str = ""


def matches(
    listing: Listing, pattern: str, level: str = "torch", earlier: EarlierStages = NO_STAGES
) -> Iterator[LineMatch]:
    """The lines in whose statement, metadata, module or user's line the pattern is found; `BadOption` for a bad one.

    Lines that others hold are searched too; in one of the earlier stages they stood by themselves.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise BadOption(
            f"--grep {pattern!r} is no regular expression: {error}", fix="escape what is literal"
        ) from error
    for number, line in enumerate(listing.lines, start=1):
        yield from matching(line, found, level, LineMatch(number, "", "", line.module, place(line)))
        for held in held_by(line, number):
            empty = LineMatch(number, "", "", held.line.module, place(held.line), held.inside)
            for match in matching(held.line, found, level, empty):
                own = earlier.stage_of(held.line)
                yield replace(match, stage=own.short if own else "")


def matching(line: Statement, pattern: re.Pattern[str], level: str, match: LineMatch) -> Iterator[LineMatch]:
    """The match of each of a line's statements at a level in which the pattern is found."""
    claimed = any(part.file for part in line.parts)
    for part in (line,) if claimed else at_level(line, level):
        about = () if line.symbol == DELETE else (match.place, part.derives or line.derives)
        if any(pattern.search(text) for text in (part.text, told(part), match.module, *about)):
            yield replace(match, text=part.text, told=told(part))


def module_lines(listing: Listing, module: str, earlier: EarlierStages = NO_STAGES) -> Listing:
    """The lines of a module and those below it, as a function of what goes in that returns what comes out.

    Lines that a region holds with those of other modules are shown as lines. `layers.0` stands for `model.layers.0`
    where no module is called `layers.0` itself. Raises `NoSuchTrace`, which names the last of the earlier stages in
    which there are such lines.
    """
    belongs = belonging_to(module, modules(listing))
    shown = opened(listing, belongs)
    if not shown.lines:
        raise gone_module(listing, module, earlier) or no_such_module(listing, stripped(module))
    inputs, results = boundary(listing, shown.lines)
    names = ", ".join(value.name for value in results)
    returns = f"({names},)" if len(results) == 1 else f"({names})"
    return replace(shown, inputs=inputs, results=results, returns=returns)


def belonging_to(module: str, paths: Sequence[str]) -> Belongs:
    """Select the paths of a module and of what is below it; where none is, all that have such a part."""
    wanted = stripped(module)
    if any(is_within(path, wanted) for path in paths):
        return lambda path: is_within(path, wanted)
    return lambda path: f".{wanted}." in f".{path}."


def stripped(module: str) -> str:
    """A module's path as lines have it."""
    return module.removeprefix("module.").strip(".")


def modules(listing: Listing) -> list[str]:
    """The paths of the modules that lines belong to, those that others hold too."""
    lines = (*listing.lines, *(held.line for held in all_held(listing)))
    return sorted({line.module for line in lines if line.module})


def boundary(listing: Listing, lines: tuple[Statement, ...]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The inputs of some bound symbols that come from elsewhere, and their outputs that are read elsewhere.

    The lines may be some that a line of the listing holds: what the others in there read and make counts too.
    """
    every = list(spelled_out(listing))
    values = {value.name: value for line in (*listing.lines, *every) for value in line.makes}
    values |= {value.name: value for value in listing.inputs}
    made = {value.name for line in lines for value in line.makes}
    inside = {one.text for line in lines for one in (line, *(held.line for held in held_by(line, 0)))}
    read = [name for line in lines for name in line.reads if line.symbol != DELETE]
    read_outside = {name for line in every if line.text not in inside and line.symbol != DELETE for name in line.reads}
    read_outside |= {value.name for value in listing.results}
    inputs = tuple(values.get(name, Value(name)) for name in dict.fromkeys(read) if name not in made)
    results = tuple(values[name] for name in values if name in made and name in read_outside)
    return inputs, results


def spelled_out(listing: Listing) -> Iterator[Statement]:
    """The lines of a listing, with those that a line holds in its place; and without the lists that such lines take."""
    holding = [line for line in listing.lines if any(held_by(line, 0))]
    given = {name for line in holding for name in line.reads}
    for line in listing.lines:
        if line.symbol == LIST and any(value.name in given for value in line.makes):
            continue
        yield from [held.line for held in held_by(line, 0)] or [line]


def gone_module(listing: Listing, module: str, earlier: EarlierStages) -> NoSuchTrace | None:
    """The error for a module whose lines an earlier stage has; None where none has."""
    for stage in reversed(earlier.stages):
        paths = modules(stage.read())
        if any(map(belonging_to(module, paths), paths)):
            return NoSuchTrace(
                f"no line of {stripped(module)!r} is left in the {listing.name} trace at this stage",
                fix=f"--stage {stage.facts.number} ({stage.made_by}) is the last that has some",
            )
    return None


def no_such_module(listing: Listing, wanted: str) -> NoSuchTrace:
    """The error for a module that has no line, naming the nearest that have."""
    known = modules(listing)
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4) or known[:3]
    return NoSuchTrace(
        f"no line of the {listing.name} trace belongs to a module {wanted!r}",
        fix=f"name a module's path, for example: {', '.join(near)}" if near else "this trace names no modules",
    )
