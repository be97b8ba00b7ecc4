"""A trace as plain data: printed statements with their metadata, from which it can be laid out, searched and stored."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.foundation.quick_objects import with_quick_init

# The names of symbols that Thunder adds to the program's statements: see `backend/claiming/free.py`.
DELETE, LIST, CODE, CHECK = "python.del", "python.list", "python.code", "python.check"


@with_quick_init
@dataclass(frozen=True)
class Value:
    """A name of a trace: a short description of its metadata, and its origin if it is known."""

    name: str
    described: str = ""
    origin: str = ""


@with_quick_init
@dataclass(frozen=True)
class Statement:
    """A printed bound symbol: its text, its source line, the names that it reads and defines, and its `parts`.

    The parts of a region are statements of the program, and the parts of these statements are aten operations. In a
    backward, `derives` is the forward's statement that this statement helps to differentiate. `definitions` are the
    functions that are passed to a higher-order operator; they are printed before the statement.
    """

    text: str
    symbol: str
    executor: str = ""
    module: str = ""
    file: str = ""
    number: int = 0
    function: str = ""
    code: str = ""
    reads: tuple[str, ...] = ()
    makes: tuple[Value, ...] = ()
    parts: tuple[Statement, ...] = ()
    derives: str = ""
    definitions: tuple[Listing, ...] = ()


@dataclass(frozen=True)
class Listing:
    """A function of a trace as printed statements; an entry of `imports` is `a.b`, or `a.b:c` to import only c."""

    name: str
    made_by: str
    inputs: tuple[Value, ...]
    lines: tuple[Statement, ...]
    returns: str
    results: tuple[Value, ...] = ()
    imports: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


def is_claimed(executor: str) -> bool:
    """Whether an executor other than eager PyTorch runs the statement."""
    return executor not in ("", "torch")
