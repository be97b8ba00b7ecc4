"""The table of opcodes: `@opcode("NAME")` puts a handler in, `handlers` takes those of one Python version out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.versions import HERE, Version, require_supported

# A handler changes the frame and returns None, or the index of the next instruction, or LEAVE.
Handler = Callable[[Frame, Any], int | None]
# A preparation turns the raw argument of an instruction into what its handler wants, once a code object.
Preparation = Callable[[DecodingContext, int], Any]

# What a handler returns when the frame is to be left: its result is on top of the stack.
LEAVE = -1
# The same for an exception that has been raised before: it is on top of the stack.
RERAISE = -2


@dataclass(frozen=True)
class Row:
    """One handler: the versions that it serves, whether it is for observed runs only, and its preparation."""

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
    """Make a function the handler of opcodes from Python `since` to before `until`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            _rows.setdefault(name, []).append(Row(handler, since, until, observed, prepare))
        return handler

    return register


def handlers(observed: bool, version: Version = HERE) -> dict[str, Row]:
    """The row of each opcode for a version; an observed run prefers the rows made for it.

    Rows hold from a version on, so a version that nobody has gone through is refused: raises `PythonNotSupported`.
    """
    require_supported(version)
    table: dict[str, Row] = {}
    for name, rows in _rows.items():
        served = [row for row in rows if row.since <= version < row.until and (observed or not row.observed)]
        if served:
            table[name] = max(served, key=lambda row: (row.observed, row.since))
    return table
