"""Check that the displayed lines of a stage are the lines that run: an artifact stores them in two files."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

from pydantic import TypeAdapter

from thunder_core.tracing.ir.layout import import_line, layout
from thunder_core.tracing.ir.listing import Listing, Statement, Value

LISTINGS = TypeAdapter(Listing)  # reads and writes listings as JSON
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


def listing_matches_code(listing: Listing, text: str) -> bool:
    """Whether a source defines exactly the function that a listing shows. Python compiles both and runs neither."""
    if any("\n" in text or "\r" in text for text in texts_of(listing)):  # or a comment could continue as code
        return False
    try:
        return meaning(listing, text) == meaning(listing, layout(listing, comments=False))
    except PARSE_ERRORS:
        return False


def texts_of(listing: Listing) -> Iterator[str]:
    """Yield every string in a listing."""
    yield from (listing.name, listing.made_by, listing.returns, *listing.imports, *listing.constants)
    yield from (text for value in (*listing.inputs, *listing.results) for text in texts_of_value(value))
    yield from (text for line in listing.lines for text in texts_of_line(line))


def texts_of_value(value: Value) -> tuple[str, ...]:
    """Return every string of a value."""
    return value.name, value.described, value.origin


def texts_of_line(line: Statement) -> Iterator[str]:
    """Yield every string of a line and its parts."""
    yield from (line.text, line.symbol, line.executor, line.module, line.file, line.function, line.code, line.derives)
    yield from line.reads
    yield from (text for value in line.makes for text in texts_of_value(value))
    yield from (text for part in line.parts for text in texts_of_line(part))
    yield from (text for definition in line.definitions for text in texts_of(definition))


def meaning(listing: Listing, text: str) -> tuple[object, ...]:
    """Compile a trace module, and return its code without line numbers.

    Raises ValueError if the module has more than imports and one function.
    """
    head, _, body = f"\n{text}".partition("\ndef ")
    allowed = {"", *map(import_line, listing.imports)}
    if any(line not in allowed and not line.startswith("#") for line in head.splitlines()):
        raise ValueError("a trace module may contain only imports and its function")
    return meaning_of_code(compile(f"def {body}", "<shown>", "exec", dont_inherit=True))


def meaning_of_code(code: CodeType) -> tuple[object, ...]:
    """Return everything in a code object that affects its execution; equal results mean equal behavior."""
    constants = (meaning_of_code(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts)
    signature = (code.co_name, code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (*signature, *names, code.co_code, code.co_exceptiontable, *constants)
