"""The oracle: a program's value, output and exception, in CPython and in the interpreter."""

import contextlib
import io
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from thunder_core.frontend.interpreter import Observer, interpret


@dataclass(frozen=True)
class Run:
    """The outcome of a program: the text of its value, its output, and its exceptions with their lines."""

    value: str
    output: str
    error: tuple[Any, ...]


Entries = Callable[[TracebackType | None], list[TracebackType]]


def entries_of(entry: TracebackType | None) -> list[TracebackType]:
    """Return the entries of a traceback, outermost first."""
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def describe_exception(error: BaseException | None, depth: int = 0, entries: Entries = entries_of) -> tuple[Any, ...]:
    """Return an exception as data, with its arguments, lines, notes, cause and context."""
    if error is None or depth > 6:
        return ()
    lines = [
        (entry.tb_frame.f_code.co_name, entry.tb_lineno)
        for entry in entries(error.__traceback__)
        if entry.tb_frame.f_code.co_filename != __file__
    ]
    parts = tuple(describe_exception(item, depth + 1, entries) for item in getattr(error, "exceptions", ()))
    return (
        type(error).__name__,
        repr(error.args),
        tuple(lines),
        tuple(getattr(error, "__notes__", ())),
        error.__suppress_context__,
        describe_exception(error.__cause__, depth + 1, entries),
        describe_exception(error.__context__, depth + 1, entries),
        parts,
    )


def run(program: Callable[..., Any], *arguments: Any) -> Run:
    """Run a program and return its outcome."""
    output = io.StringIO()
    value, error = None, None
    with contextlib.redirect_stdout(output):
        try:
            value = program(*arguments)
        except BaseException as raised:
            error = describe_exception(raised)
            text = traceback.format_exception(raised)
            error = (
                *error,
                tuple(line for line in text if "oracle.py" not in line and "/interpreter/entry" not in line),
            )
    return Run(repr(value), output.getvalue(), error or ())


def assert_same(program: Callable[..., Any], *arguments: Any) -> None:
    """Assert that a program has the same outcome in CPython, in the interpreter, and with an observer that changes
    nothing.
    """
    native = run(program, *arguments)
    assert run(interpret(program), *arguments) == native
    assert run(interpret(program, Observer()), *arguments) == native
