"""A trace as printed statements with what is known of each: enough to print it, search it and keep it on disk."""

from __future__ import annotations

from dataclasses import dataclass

# The names of symbols whose statements are not the program's: see `backend/claiming/free.py`.
DELETE, LIST, CODE, CHECK = "python.del", "python.list", "python.code", "python.check"


@dataclass(frozen=True)
class Value:
    """A name of a trace: its metadata in short, and where it comes from or what it is, where that is known."""

    name: str
    described: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Statement:
    """A bound symbol as it is printed: its text, whose it is, what it reads and makes, and the `parts` it consists of.

    The parts of a region are statements of the program; those of such a one are aten operations. In a backward,
    `derives` is the statement of the forward whose derivative it is part of. `definitions` are the functions that it
    hands to a higher-order operator, which are defined before it.
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
    """A function of a trace, ready to be laid out; `imports` are `a.b`, or `a.b:c` for c alone."""

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
