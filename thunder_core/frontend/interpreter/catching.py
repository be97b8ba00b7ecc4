"""Handlers of errors that are entered: whether what is raised now may be caught by the program."""

from __future__ import annotations

import contextlib
import dis
from functools import lru_cache
from types import CodeType
from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Frame

# Instructions before the first `RERAISE` of a handler that may end an error; a plain `finally` has none of them.
ENDING = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"})
PADDING = frozenset({"CACHE", "NOP", "NOT_TAKEN"})

Errors = tuple[type[BaseException], ...]
Clause = tuple[str, ...] | None  # the global names of the classes that an `except` clause catches


def is_caught(frame: Frame | None, errors: Errors = ()) -> bool:
    """Whether an error that is raised now may be caught in this frame or a caller: any, or one of these classes."""
    while frame is not None:
        if may_catch(frame, errors):
            return True
        frame = frame.back
    return False


def may_catch(frame: Frame, errors: Errors) -> bool:
    """Whether a handler around a frame's present step may end such an error: an `except`, or a context manager."""
    program = frame.program
    found = program.catches[frame.pc]
    while found is not None:
        names = handler_names(frame.code, program.offsets[found.target])
        if names[1:2] == ("WITH_EXCEPT_START",):
            if may_suppress(leaving(frame, found.depth)):
                return True
        elif names[0] == "PUSH_EXC_INFO" and ENDING.intersection(names):
            entered = clauses(frame.code, program.offsets[found.target])
            if not errors or any(may_match(frame, errors, clause) for clause in entered):
                return True
        found = program.catches[found.target]
    return False


def leaving(frame: Frame, depth: int) -> Any:
    """The `__exit__` of a `with` whose handler begins at this depth of the stack; from 3.14 on, a NULL is above it."""
    top = frame.stack[depth - 1]
    return frame.stack[depth - 2] if top is NULL else top


def may_match(frame: Frame, errors: Errors, clause: Clause) -> bool:
    """Whether an `except` clause may match an error of these classes: where nothing tells its classes, it may."""
    if clause is None:
        return True
    caught = [frame.globals.get(name, frame.builtins.get(name)) for name in clause]
    return any(not isinstance(kind, type) or any(issubclass(one, kind) for one in errors) for kind in caught)


@lru_cache(maxsize=4096)
def clauses(code: CodeType, offset: int) -> tuple[Clause, ...]:
    """The `except` clauses of a handler, in order: the global names of their classes, None for any other clause."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in PADDING]
    places = {one.offset: place for place, one in enumerate(instructions)}
    place = places[offset] + 1  # behind `PUSH_EXC_INFO`
    found: list[Clause] = []
    while instructions[place].opname != "RERAISE":
        names = []
        while instructions[place].opname == "LOAD_GLOBAL":
            names.append(instructions[place].argval)
            place += 1
        if len(names) > 1 and instructions[place].opname == "BUILD_TUPLE" and instructions[place].arg == len(names):
            place += 1
        elif len(names) != 1:
            return (*found, None)
        match, jump = instructions[place], instructions[place + 1]
        if match.opname != "CHECK_EXC_MATCH" or not jump.opname.endswith("IF_FALSE"):
            return (*found, None)
        found.append(tuple(names))
        place = places.get(jump.argval, len(instructions) - 1)
    return tuple(found)


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
