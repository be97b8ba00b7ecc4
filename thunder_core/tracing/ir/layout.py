"""Lay out listings as Python source for people: comments show types, modules and source lines of the statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_core.tracing.ir.listing import CHECK, DELETE, LIST, Listing, Statement, is_claimed

INDENT = "    "
GRADIENT = "gradient of "
BACKWARD = "backward"  # the name of the trace whose lines are derivatives of another trace's lines
TYPE_COLUMN = 80  # the column of the comments with types, unless the statement is longer
MIN_COLUMN = 40
MIN_COMMENT = 12  # a comment is not cut to fewer characters
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
    """Return a listing as the source of a Python module. If `width` is set, comments are moved and cut to fit.

    `head` replaces the default comments at the top, and `preamble` the default lines after the imports.
    """
    column = TYPE_COLUMN if width is None else max(MIN_COLUMN, min(TYPE_COLUMN, width - 40))
    if head is None:
        head = [f"# {listing.name}: {listing.made_by}"] if comments else []
    if preamble is None:
        preamble = [f"# constants: {', '.join(listing.constants)}"] if comments and listing.constants else []
    body = [*_body(listing.lines, level, comments, column, listing.name == BACKWARD), f"return {listing.returns}"]
    lines = [*head, *map(import_line, listing.imports), *preamble, "", "", *signature(listing, comments, column)]
    lines += [INDENT + line if line else "" for line in body]
    return "\n".join(lines if width is None else [fit(line, width) for line in lines]).strip("\n") + "\n"


def fit(line: str, width: int) -> str:
    """Return the line with its comment cut at the width; statements are never cut."""
    statement, mark, comment = line.rpartition("  # ") if "  # " in line else ("", "", line)
    if len(line) <= width or not (mark or line.lstrip().startswith("#")):
        return line
    width_left = width - len(statement) - len(mark) - 1
    return f"{statement}{mark}{comment[:width_left]}…" if width_left >= MIN_COMMENT else line


def import_line(entry: str) -> str:
    """Return the import statement for an entry of a scope's imports: `a.b`, `a.b:c` (imports c) or `a.b:c as d`."""
    module, _, name = entry.partition(":")
    if name and not all(part.isidentifier() for part in module.split(".")):
        # transformers names the modules of model repositories by digests, which may begin with a digit
        imported, _, alias = name.partition(" as ")
        return f"{alias or imported} = __import__({module!r}, fromlist=[{imported!r}]).{imported}"
    return f"from {module} import {name}" if name else f"import {module}"


def signature(listing: Listing, comments: bool, column: int = TYPE_COLUMN) -> Iterator[str]:
    """Yield the `def` statement; many inputs, or inputs with comments, are on separate lines."""
    named = any(value.described or value.origin for value in listing.inputs)
    if not comments or not (named or len(listing.inputs) > 6):
        yield f"def {listing.name}({', '.join(value.name for value in listing.inputs)}):"
        return
    longest = max(len(value.described) for value in listing.inputs)
    yield f"def {listing.name}("
    for value in listing.inputs:
        comment = f"{value.described:<{longest}}  {value.origin}".strip()
        yield INDENT + with_comment(f"{value.name},", comment, column)
    yield "):"


def at_level(line: Statement, level: str) -> tuple[Statement, ...]:
    """Return the statements that a line consists of at a level: itself, or its aten operations."""
    if level != "aten" or not line.parts:
        return (line,)
    return tuple(inner for part in line.parts for inner in at_level(part, level))


def with_comment(statement: str, comment: str, column: int) -> str:
    """Return a statement with a comment at a column, or right after the statement if it is longer."""
    return f"{statement:<{column - len(INDENT)}}  # {comment}" if comment else statement


def result_comment(line: Statement) -> str:
    """Return the comment on the results of a statement and its executor."""
    types = ", ".join(value.described for value in line.makes if value.described)
    origins = join_origins([value.origin for value in line.makes if value.origin])
    executor = f"[{line.executor}]" if is_claimed(line.executor) else ""
    return "  ".join(text for text in (f"{types} {executor}".strip(), origins) if text)


def join_origins(origins: Sequence[str]) -> str:
    """Join the origins of a statement's results into one phrase."""
    names = [origin.removeprefix(GRADIENT) for origin in origins if origin.startswith(GRADIENT)]
    if 1 < len(names) == len(origins):
        return f"gradients of {', '.join(names)}"
    return ", ".join(origins)


def source_line(line: Statement) -> str:
    """Return the source line of a statement: file, line number and code."""
    file = "/".join(line.file.split("/")[-2:])
    return f"{file}:{line.number}: {line.code}".rstrip(": ") if line.file else ""


def heading(line: Statement, *, backward: bool = False) -> str:
    """Return the heading for a line: its module, or without a module its function; in a backward, with the relation."""
    owner = line.module or line.function
    if not backward or not owner:
        return owner
    return f"backward of {owner}" if derives(line) else f"again: {owner}"


def headings(lines: Sequence[Statement], *, backward: bool = False) -> list[str]:
    """Return the heading of each line; a list has the heading of the following call, and a deletion has no heading."""
    headings_so_far: list[str] = []
    next_heading = ""
    for line in reversed(lines):
        if line.symbol not in (DELETE, LIST):
            next_heading = heading(line, backward=backward)
        headings_so_far.append("" if line.symbol == DELETE else next_heading)
    return headings_so_far[::-1]


def derives(line: Statement) -> bool:
    """Whether a line, or a part of it, belongs to a derivative."""
    return bool(line.derives) or any(part.derives for part in line.parts)


def derivation_comment(line: Statement, before: str) -> list[str]:
    """Return a comment with the forward's line that a line differentiates, unless the previous comment is the same."""
    return [f"# of {line.derives}"] if line.derives and line.derives != before else []


def _body(lines: Sequence[Statement], level: str, comments: bool, column: int, backward: bool = False) -> Iterator[str]:
    owner = where = forward = ""
    shown: set[str] = set()
    for line, above in zip(lines, headings(lines, backward=backward), strict=True):
        if line.symbol == CHECK:
            yield line.text
            continue
        if comments and above not in ("", owner):
            owner = above
            yield ""
            yield f"# ---- {owner} ----"
        if comments and source_line(line) and source_line(line) != where:
            where = source_line(line)
            yield f"# {where}"
        if comments:
            yield from derivation_comment(line, forward)
            forward = line.derives
        for definition in line.definitions:
            yield from _definition(definition, level, comments, column)
        for part in at_level(line, level):
            yield with_comment(part.text, result_comment(part), column) if comments else part.text
        if comments and level == "torch":
            yield from _comments_on_operations(line, shown, "#   ")


def _definition(listing: Listing, level: str, comments: bool, column: int) -> Iterator[str]:
    """Yield the lines of a nested function definition."""
    yield from signature(listing, comments, column - len(INDENT))
    body = [*_body(listing.lines, level, comments, column - len(INDENT)), f"return {listing.returns}"]
    yield from (INDENT + line if line else "" for line in body)


def _comments_on_operations(line: Statement, shown: set[str], indent: str) -> Iterator[str]:
    """Yield comments on the operations of a claimed bound symbol, and on parts that other executors claim."""
    if not is_claimed(line.executor) or _was_shown(line, shown):
        return
    forward = ""
    for part in line.parts:
        yield from (f"{indent}{comment}" for comment in derivation_comment(part, forward))
        forward = part.derives
        yield f"{indent}{part.text}{f'  [{part.executor}]' if is_claimed(part.executor) else ''}"
        yield from _comments_on_operations(part, shown, f"{indent}  ")


def _was_shown(line: Statement, shown: set[str]) -> bool:
    """Whether a line calls a region whose content was already shown; also add the region to `shown`."""
    if "." in line.symbol or line.symbol not in shown:
        shown.add(line.symbol)
        return False
    return True
