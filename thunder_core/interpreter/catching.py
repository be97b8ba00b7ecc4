"""Handlers of errors that are entered: whether what is raised now may be caught by the program."""

from __future__ import annotations

import contextlib
import dis
from functools import lru_cache
from types import CodeType
from typing import Any

from thunder_core.interpreter.frame import Frame

# Instructions before the first `RERAISE` of a handler that may end an error; a plain `finally` has none of them.
ENDING = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"})


def is_caught(frame: Frame | None) -> bool:
    """Whether an error that is raised now may be caught in this frame or one of its callers."""
    while frame is not None:
        if may_catch(frame):
            return True
        frame = frame.back
    return False


def may_catch(frame: Frame) -> bool:
    """Whether a handler around a frame's present step may end an error: an `except`, or a context manager."""
    program = frame.program
    found = program.catches[frame.pc]
    while found is not None:
        names = handler_names(frame.code, program.offsets[found.target])
        if names[1:2] == ("WITH_EXCEPT_START",):
            if may_suppress(frame.stack[found.depth - 1]):
                return True
        elif names[0] == "PUSH_EXC_INFO" and ENDING.intersection(names):
            return True
        found = program.catches[found.target]
    return False


@lru_cache(maxsize=4096)
def handler_names(code: CodeType, offset: int) -> tuple[str, ...]:
    """The names of the instructions of a handler, up to where it raises the error again."""
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset >= offset:
            names.append(instruction.opname)
            if instruction.opname == "RERAISE":
                break
    return tuple(names)


def may_suppress(leave: Any) -> bool:
    """Whether the `__exit__` of a context manager, or the manager, may end an error; those of PyTorch do not."""
    manager = getattr(leave, "__self__", leave)
    function = getattr(manager, "func", None) if isinstance(manager, contextlib._GeneratorContextManager) else None
    module = str(getattr(function or type(manager), "__module__", ""))
    return module.partition(".")[0] != "torch" and type(manager) is not contextlib.nullcontext
