"""Generated Python: a printed trace, compiled by Python and visible in tracebacks."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

from thunder_core.ir.printer import Source

_numbers = itertools.count()


def executable(source: Source, name: str) -> Callable[..., Any]:
    """The function of that name that the source defines; tracebacks show its lines."""
    filename = f"<thunder {name} {next(_numbers)}>"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = dict(source.constants)
    exec(compile(source.text, filename, "exec"), namespace)  # noqa: S102 (what runs is the printed source)
    function: Callable[..., Any] = namespace[name]
    return function
