"""Where text goes: data to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console

PIPE_WIDTH = 240  # wide enough that a table which is piped is never cut

Json = Mapping[str, object]


def stdout() -> Console:
    """The console for results."""
    return Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH)


def stderr(*, quiet: bool = False) -> Console:
    """The console for plans, progress and errors."""
    return Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=not sys.stderr.isatty())


class Facts(Protocol):
    """Plain data that can write itself as JSON, infinities and NaN as words."""

    def model_dump_json(self) -> str:
        """The data as JSON."""


def plain(facts: Facts) -> Any:
    """Facts as what JSON can hold."""
    return json.loads(facts.model_dump_json())


def print_json(schema: str, content: Json) -> None:
    """Print one JSON document to stdout; `schema` is a name and a version: `thunder.recipes/1`."""
    print(json.dumps({"schema": f"thunder.{schema}", **content}, indent=2, ensure_ascii=False, allow_nan=False))
