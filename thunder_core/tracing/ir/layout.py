"""Listings as Python source for people: types beside statements, and above them whose line it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_core.tracing.ir.listing import DELETE, LIST, Listing, Statement, is_claimed

INDENT = "    "
GRADIENT = "gradient of "
BACKWARD = "backward"  # the trace whose lines are derivatives of another's
TYPE_COLUMN = 80  # where the types stand, if the statement leaves room
NARROWEST = 40
FEWEST = 12  # letters of a comment that are worth showing
LEVELS = ("torch", "aten")


def layout(
    listing: Listing,
    *,
    level: str = "torch",
    comments: bool = True,
    width: int | None = None,
    head: Sequence[str] | None = None,
    preamble: Sequence[str] | None = None,
) -> str:
    """A listing as the text of a Python module. With a `width`, comments are moved and cut so as to fit into it.

    `head` are the comments at the top, and `preamble` the lines behind the imports, in place of the usual ones.
    """
    column = TYPE_COLUMN if width is None else max(NARROWEST, min(TYPE_COLUMN, width - 40))
    if head is None:
        head = [f"# {listing.name}: {listing.made_by}"] if comments else []
    if preamble is None:
        preamble = [f"# constants: {', '.join(listing.constants)}"] if comments and listing.constants else []
    body = [*_body(listing.lines, level, comments, column, listing.name == BACKWARD), f"return {listing.returns}"]
    lines = [*head, *map(import_line, listing.imports), *preamble, "", "", *signature(listing, comments, column)]
    lines += [INDENT + line if line else "" for line in body]
    return "\n".join(lines if width is None else [fitted(line, width) for line in lines]).strip("\n") + "\n"


def fitted(line: str, width: int) -> str:
    """The line, its comment cut where it would pass the width; statements are never cut."""
    statement, mark, comment = line.rpartition("  # ") if "  # " in line else ("", "", line)
    if len(line) <= width or not (mark or line.lstrip().startswith("#")):
        return line
    room = width - len(statement) - len(mark) - 1
    return f"{statement}{mark}{comment[:room]}…" if room >= FEWEST else line


def import_line(entry: str) -> str:
    """The statement for an entry of a scope's imports: `a.b`, or `a.b:c` for c alone, or `a.b:c as d`."""
    module, _, name = entry.partition(":")
    if name and not all(part.isidentifier() for part in module.split(".")):
        # transformers names the modules of code that a model brings by digests, which may begin with a digit
        imported, _, alias = name.partition(" as ")
        return f"{alias or imported} = __import__({module!r}, fromlist=[{imported!r}]).{imported}"
    return f"from {module} import {name}" if name else f"import {module}"


def signature(listing: Listing, comments: bool, column: int = TYPE_COLUMN) -> Iterator[str]:
    """The `def` line; one input a line where they are many or come from somewhere."""
    named = any(value.described or value.origin for value in listing.inputs)
    if not comments or not (named or len(listing.inputs) > 6):
        yield f"def {listing.name}({', '.join(value.name for value in listing.inputs)}):"
        return
    longest = max(len(value.described) for value in listing.inputs)
    yield f"def {listing.name}("
    for value in listing.inputs:
        told = f"{value.described:<{longest}}  {value.origin}".strip()
        yield INDENT + beside(f"{value.name},", told, column)
    yield "):"


def at_level(line: Statement, level: str) -> tuple[Statement, ...]:
    """The statements that a line consists of at a level."""
    if level != "aten" or not line.parts:
        return (line,)
    return tuple(inner for part in line.parts for inner in at_level(part, level))


def beside(statement: str, comment: str, column: int) -> str:
    """A statement with a comment at a column, or behind it where it is longer."""
    return f"{statement:<{column - len(INDENT)}}  # {comment}" if comment else statement


def told(line: Statement) -> str:
    """A comment on what a statement makes, and who runs it."""
    types = ", ".join(value.described for value in line.makes if value.described)
    origins = together([value.origin for value in line.makes if value.origin])
    executor = f"[{line.executor}]" if is_claimed(line.executor) else ""
    return "  ".join(part for part in (f"{types} {executor}".strip(), origins) if part)


def together(origins: Sequence[str]) -> str:
    """A phrase for the results of a statement."""
    names = [origin.removeprefix(GRADIENT) for origin in origins if origin.startswith(GRADIENT)]
    if 1 < len(names) == len(origins):
        return f"gradients of {', '.join(names)}"
    return ", ".join(origins)


def place(line: Statement) -> str:
    """The user's line, and its text."""
    file = "/".join(line.file.split("/")[-2:])
    return f"{file}:{line.number}: {line.code}".rstrip(": ") if line.file else ""


def heading(line: Statement, *, backward: bool = False) -> str:
    """Whose line it is: the module's path, or the function where there is none; in a backward, what it is to that."""
    owner = line.module or line.function
    if not backward or not owner:
        return owner
    return f"backward of {owner}" if derives(line) else f"again: {owner}"


def headings(lines: Sequence[Statement], *, backward: bool = False) -> list[str]:
    """Above each line whose it is: a list is made for the call behind it, and what is deleted stands where it does."""
    headings_so_far: list[str] = []
    behind = ""
    for line in reversed(lines):
        if line.symbol not in (DELETE, LIST):
            behind = heading(line, backward=backward)
        headings_so_far.append("" if line.symbol == DELETE else behind)
    return headings_so_far[::-1]


def derives(line: Statement) -> bool:
    """Whether a line, or one of those that it stands for, is part of a derivative."""
    return bool(line.derives) or any(part.derives for part in line.parts)


def derived_from(line: Statement, before: str) -> list[str]:
    """The comment with the line of the forward whose derivative this is, where it is another than that before."""
    return [f"# of {line.derives}"] if line.derives and line.derives != before else []


def _body(lines: Sequence[Statement], level: str, comments: bool, column: int, backward: bool = False) -> Iterator[str]:
    owner = where = forward = ""
    shown: set[str] = set()
    for line, above in zip(lines, headings(lines, backward=backward), strict=True):
        if comments and above not in ("", owner):
            owner = above
            yield ""
            yield f"# ---- {owner} ----"
        if comments and place(line) and place(line) != where:
            where = place(line)
            yield f"# {where}"
        if comments:
            yield from derived_from(line, forward)
            forward = line.derives
        for definition in line.definitions:
            yield from _definition(definition, level, comments, column)
        for part in at_level(line, level):
            yield beside(part.text, told(part), column) if comments else part.text
        if comments and level == "torch":
            yield from _inside(line, shown, "#   ")


def _definition(listing: Listing, level: str, comments: bool, column: int) -> Iterator[str]:
    """The lines of a function that is defined within another."""
    yield from signature(listing, comments, column - len(INDENT))
    body = [*_body(listing.lines, level, comments, column - len(INDENT)), f"return {listing.returns}"]
    yield from (INDENT + line if line else "" for line in body)


def _inside(line: Statement, shown: set[str], indent: str) -> Iterator[str]:
    """Comments on what a claimed bound symbol stands for, and what of that others have claimed."""
    if not is_claimed(line.executor) or _is_known(line, shown):
        return
    forward = ""
    for part in line.parts:
        yield from (f"{indent}{comment}" for comment in derived_from(part, forward))
        forward = part.derives
        yield f"{indent}{part.text}{f'  [{part.executor}]' if is_claimed(part.executor) else ''}"
        yield from _inside(part, shown, f"{indent}  ")


def _is_known(line: Statement, shown: set[str]) -> bool:
    """Whether a line calls a region whose content stands further up; that it does is noted."""
    if "." in line.symbol or line.symbol not in shown:
        shown.add(line.symbol)
        return False
    return True
