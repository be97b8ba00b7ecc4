"""Consoles: data goes to stdout, progress and errors to stderr.

All output of commands goes through this module, which escapes all control characters except those of Thunder's own
colours: names, messages and traces come from models and artifacts that other people wrote.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any, Protocol, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from thunder_core.foundation.printable import printable, printable_json

PIPE_WIDTH = 240  # wide enough for all tables, so that piped tables are not cut

TRAILING_SPACES = re.compile(
    r"(?: |\x1b\[[0-9;]*m)+(?=\n)"
)  # spaces before the end of a line, and the colour codes between the spaces

Json = Mapping[str, object]


class TrimmedStream:
    """A stream that removes spaces at the ends of lines, which pad tables and panels."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text without the spaces at the ends of its lines; return the length of the original text."""
        self.stream.write(TRAILING_SPACES.sub(lambda end: end[0].replace(" ", ""), text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def trim(stream: IO[str]) -> IO[str]:
    """Return the stream itself if it is a terminal; else a stream that removes spaces at the ends of lines."""
    return stream if stream.isatty() else cast(IO[str], TrimmedStream(stream))


@contextmanager
def trimmed_stdout() -> Iterator[None]:
    """While the block runs, remove spaces at the ends of lines on stdout, except on a terminal."""
    with redirect_stdout(trim(sys.stdout)):
        yield


class PrintableConsole(Console):
    """A console that prints control characters as escapes, and markup and names of emojis as they are."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control characters escaped except in rich's own control segments."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


class ResultStream:
    """The stream for results while a command runs; other output then goes to stderr."""

    stream: IO[str] | None = None


def results() -> IO[str]:
    """Return the stream for results: stdout, to which nothing else is written while a command runs."""
    return ResultStream.stream or sys.stdout


@contextmanager
def results_alone() -> Iterator[None]:
    """While the block runs, send only results to stdout, and output of models, recipes and libraries to stderr."""
    before, ResultStream.stream = ResultStream.stream, results()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ResultStream.stream = before


def stdout() -> Console:
    """Return the console for results."""
    return console(width=None if results().isatty() or "COLUMNS" in os.environ else PIPE_WIDTH)


def stderr(*, quiet: bool = False) -> Console:
    """Return the console for plans, progress and errors."""
    return console(stderr=True, quiet=quiet, soft_wrap=not sys.stderr.isatty())


def console(*, stderr: bool = False, **options: Any) -> PrintableConsole:
    """Return a console that prints text unchanged."""
    file = trim(sys.stderr if stderr else results())
    return PrintableConsole(file=file, stderr=stderr, highlight=False, markup=False, emoji=False, **options)


def say(text: str, end: str = "\n") -> None:
    """Print a text to stdout, without wrapping and colours."""
    print(printable(text), end=end, file=results())


def print_document(document: str) -> None:
    """Print a JSON document to stdout."""
    print(printable_json(document), file=results())


class WritableAsJson(Protocol):
    """A report that can be written as JSON, with infinities and NaN as strings."""

    def model_dump_json(self) -> str:
        """Return the data as JSON."""


def json_data(facts: WritableAsJson) -> Any:
    """Return a report as data that `json.dumps` accepts."""
    return json.loads(facts.model_dump_json())


def print_json(schema: str, content: Json) -> None:
    """Print one JSON document to stdout; `schema` is a name and a version, such as `recipes/1`."""
    document = {"schema": f"thunder.{schema}", **content}
    print_document(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
