"""Parts of a listing: the lines of a module, and those that a pattern matches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from thunder_core.errors import BadOption, NoSuchTrace
from thunder_core.ir.layout import at_level, place, told
from thunder_core.ir.listing import DELETE, Line, Listing, Value


@dataclass(frozen=True)
class Match:
    """A line that a pattern matches: its number in the trace (from 1), the statement, and whose it is."""

    number: int
    text: str
    told: str
    module: str
    place: str


def matches(listing: Listing, pattern: str, level: str = "torch") -> Iterator[Match]:
    """The lines in whose statement, metadata, module or user's line the pattern is found; `BadOption` for a bad one."""
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise BadOption(
            f"--grep {pattern!r} is no regular expression: {error}", fix="escape what is literal"
        ) from error
    for number, line in enumerate(listing.lines, start=1):
        for part in at_level(line, level):
            match = Match(number, part.text, told(part), line.module, place(line))
            about = () if line.symbol == DELETE else (match.place, part.derives or line.derives)
            told_of_line = (match.text, match.told, match.module, *about)
            if any(found.search(text) for text in told_of_line):
                yield match


def module_lines(listing: Listing, module: str) -> Listing:
    """The lines of a module and those below it, as a function of what goes in that returns what comes out.

    `layers.0` stands for `model.layers.0` where no module is called `layers.0` itself. Raises `NoSuchTrace`.
    """
    wanted = module.removeprefix("module.").strip(".")
    exact = tuple(line for line in listing.lines if is_within(line.module, wanted))
    lines = exact or tuple(line for line in listing.lines if f".{wanted}." in f".{line.module}.")
    if not lines:
        raise no_such_module(listing, wanted)
    inputs, results = boundary(listing, lines)
    names = ", ".join(value.name for value in results)
    returns = f"({names},)" if len(results) == 1 else f"({names})"
    return replace(listing, lines=lines, inputs=inputs, results=results, returns=returns)


def is_within(module: str, owner: str) -> bool:
    """Whether a module's path is that of the owner, or leads below it."""
    return module == owner or module.startswith(f"{owner}.")


def boundary(listing: Listing, lines: tuple[Line, ...]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What goes into some of a listing's lines from elsewhere, and what of theirs is read elsewhere."""
    values = {value.name: value for value in listing.inputs}
    values |= {value.name: value for line in listing.lines for value in line.makes}
    made = {value.name for line in lines for value in line.makes}
    inside = {id(line) for line in lines}
    read = [name for line in lines for name in line.reads if line.symbol != DELETE]
    read_outside = {
        name for line in listing.lines if id(line) not in inside and line.symbol != DELETE for name in line.reads
    }
    read_outside |= {value.name for value in listing.results}
    inputs = tuple(values.get(name, Value(name)) for name in dict.fromkeys(read) if name not in made)
    results = tuple(values[name] for name in values if name in made and name in read_outside)
    return inputs, results


def no_such_module(listing: Listing, wanted: str) -> NoSuchTrace:
    """The error for a module that has no line, naming the nearest that have."""
    known = sorted({line.module for line in listing.lines if line.module})
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4) or known[:3]
    return NoSuchTrace(
        f"no line of the {listing.name} trace belongs to a module {wanted!r}",
        fix=f"name a module's path, for example: {', '.join(near)}" if near else "this trace names no modules",
    )
