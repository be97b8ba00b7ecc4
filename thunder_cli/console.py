"""Where text goes: data to stdout, progress and errors to stderr.

Everything that a command prints passes through here, and nothing of it is obeyed by the terminal but our own colours:
names, messages and traces come from models and artifacts that others wrote.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from thunder_core.printable import printable, printable_json

PIPE_WIDTH = 240  # wide enough that a table which is piped is never cut

Json = Mapping[str, object]


class PrintableConsole(Console):
    """A console that shows control characters as escapes, and takes no text for markup or the name of an emoji."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something to print; those that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


def stdout() -> Console:
    """The console for results."""
    return console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH)


def stderr(*, quiet: bool = False) -> Console:
    """The console for plans, progress and errors."""
    return console(stderr=True, quiet=quiet, soft_wrap=not sys.stderr.isatty())


def console(**options: Any) -> PrintableConsole:
    """A console that prints text as it stands."""
    return PrintableConsole(highlight=False, markup=False, emoji=False, **options)


def say(text: str, end: str = "\n") -> None:
    """Print a text to stdout, unwrapped and without colours."""
    print(printable(text), end=end)


def print_document(document: str) -> None:
    """Print a text in JSON to stdout."""
    print(printable_json(document))


class Facts(Protocol):
    """Plain data that can write itself as JSON, infinities and NaN as words."""

    def model_dump_json(self) -> str:
        """The data as JSON."""


def plain(facts: Facts) -> Any:
    """Facts as what JSON can hold."""
    return json.loads(facts.model_dump_json())


def print_json(schema: str, content: Json) -> None:
    """Print one JSON document to stdout; `schema` is a name and a version: `thunder.recipes/1`."""
    document = {"schema": f"thunder.{schema}", **content}
    print_document(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
