"""The table of opcodes: `@opcode("NAME")` registers a handler, and `handlers` returns those of one Python version."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.versions import RUNNING_VERSION, Version, require_supported

# A handler changes the frame and returns None, the index of the next step, LEAVE or RERAISE.
Handler = Callable[[Frame, Any], int | None]
# A preparation converts the raw argument of an instruction for its handler, once per code object.
Preparation = Callable[[DecodingContext, int], Any]

# A handler's return value to leave the frame, with the result on top of the stack.
LEAVE = -1
# A handler's return value to leave the frame with an exception that was raised before, on top of the stack.
RERAISE = -2


@dataclass(frozen=True)
class Row:
    """A handler, with its range of versions, whether it is only for observed runs, and its preparation."""

    handler: Handler
    since: Version
    until: Version
    observed: bool
    prepare: Preparation | None


_rows: dict[str, list[Row]] = {}


def opcode(
    *names: str,
    since: Version = (3, 11),
    until: Version = (3, 99),
    observed: bool = False,
    prepare: Preparation | None = None,
) -> Callable[[Handler], Handler]:
    """Register a handler of opcodes for Python versions from `since` up to, but not including, `until`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            _rows.setdefault(name, []).append(Row(handler, since, until, observed, prepare))
        return handler

    return register


def handlers(observed: bool, version: Version = RUNNING_VERSION) -> dict[str, Row]:
    """Return the row of each opcode for a version. An observed run prefers the rows for observed runs.

    Raises `PythonNotSupported` for an unknown version, because most rows have no upper bound.
    """
    require_supported(version)
    table: dict[str, Row] = {}
    for name, rows in _rows.items():
        served = [row for row in rows if row.since <= version < row.until and (observed or not row.observed)]
        if served:
            table[name] = max(served, key=lambda row: (row.observed, row.since))
    return table
