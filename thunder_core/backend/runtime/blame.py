"""Errors of a running program: leave its inference modes, and find the user's source line."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

import torch

from thunder_core.foundation.errors import SourceLine, ThunderError
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

GENERATED = "<thunder "
OPERATION_COMMENT = "# operation "  # begins the comment on a line that runs one operation of a region


def generated_frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of generated code that an error passed through, outermost first, with their lines."""
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename.startswith(GENERATED):
            yield entry.tb_frame, entry.tb_lineno
        entry = entry.tb_next


def leave_inference_modes(error: BaseException) -> None:
    """Leave the inference modes that generated code had entered when it raised; the error's frames keep them active."""
    for frame, _ in generated_frames(error):
        for value in reversed(list(frame.f_locals.values())):
            if isinstance(value, torch.inference_mode):
                value.__exit__(None, None, None)


def add_source_line(error: BaseException, trace: Trace) -> None:
    """Add the user's source line to an error of a bound symbol, as a note or as `where`, if it has no line yet."""
    source = user_line(error, trace)
    if source is None:
        return
    if not isinstance(error, ThunderError):
        error.add_note(f"  at: {source}")
    elif error.where is None:
        error.where = source


def user_line(error: BaseException, trace: Trace) -> SourceLine | None:
    """Return the user's source line of the bound symbol that raised an error."""
    lines = (bound_symbol_at(trace, frame.f_code.co_filename, number) for frame, number in generated_frames(error))
    bsym = next(filter(None, lines), None)
    return None if bsym is None else failed_part(bsym, error).source


def bound_symbol_at(trace: Trace, filename: str, number: int) -> BoundSymbol | None:
    """Return the bound symbol at a line of a trace's printed text; None if no bound symbol of the trace is there."""
    index = statement_at(trace.name, filename, number)
    return trace.bound_symbols[index] if index is not None and index < len(trace.bound_symbols) else None


def statement_at(name: str, filename: str, number: int) -> int | None:
    """Return the index of the statement at a line of generated code, in the function `name`; None if there is none."""
    lines = _lines_of_statements(name, "".join(linecache.getlines(filename)))
    return next((index for index, (first, last) in enumerate(lines) if first <= number <= last), None)


@lru_cache(maxsize=16)
def _lines_of_statements(name: str, text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and the last line of each statement in the function `name` of a source."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    statements = functions[0].body if functions else []
    return tuple((statement.lineno, statement.end_lineno or 0) for statement in statements)


def operation_comment(index: int) -> str:
    """Return the comment for a line of generated code that runs the operation at an index of a region."""
    return f"{OPERATION_COMMENT}{index}"


def failed_part(bsym: BoundSymbol, error: BaseException) -> BoundSymbol:
    """Return the operation of a region that raised, if a line of generated code names it; else the bound symbol."""
    lines = (linecache.getline(frame.f_code.co_filename, number) for frame, number in generated_frames(error))
    indices = [
        int(index) for line in lines for index in line.partition(OPERATION_COMMENT)[2:] if index.strip().isdigit()
    ]
    parts = [part for part in bsym.subsymbols for _ in part.operations]
    return parts[indices[-1]] if indices and indices[-1] < len(parts) else bsym
