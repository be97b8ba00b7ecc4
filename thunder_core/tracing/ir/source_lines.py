"""Execute generated source so that tracebacks show its lines, as long as the defined function exists."""

from __future__ import annotations

import itertools
import linecache
from typing import Any
from weakref import finalize

_numbers = itertools.count()


def execute_source(label: str, text: str, namespace: dict[str, Any], name: str) -> Any:
    """Execute source in a namespace and return the object that it defines; `label` identifies files in tracebacks.

    The lines are kept for the lifetime of the function's code object, which other functions may share.
    """
    filename = f"<thunder {label} {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)  # noqa: S102 (what runs is the printed source)
    defined = namespace[name]
    code = getattr(defined, "__code__", None)
    owner = code if code is not None and code.co_filename == filename else defined
    finalize(owner, linecache.cache.pop, filename, None).atexit = False
    return defined
