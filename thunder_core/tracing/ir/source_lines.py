"""Generated source that is executed: tracebacks show its lines as long as what it defined can run."""

from __future__ import annotations

import itertools
import linecache
from typing import Any
from weakref import finalize

_numbers = itertools.count()


def executed_source(label: str, text: str, namespace: dict[str, Any], name: str) -> Any:
    """Execute source in a namespace and return what it defines under a name; `label` tells files apart in tracebacks.

    Its lines are kept for as long as the code of that function is, which other functions may take over.
    """
    filename = f"<thunder {label} {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)  # noqa: S102 (what runs is the printed source)
    defined = namespace[name]
    code = getattr(defined, "__code__", None)
    owner = code if code is not None and code.co_filename == filename else defined
    finalize(owner, linecache.cache.pop, filename, None).atexit = False
    return defined
