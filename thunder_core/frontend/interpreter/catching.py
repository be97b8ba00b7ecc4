"""Analysis of a program's error handling: whether it may catch an error, and whether a branch only raises an error."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.calls import issubclass_natively
from thunder_core.frontend.interpreter.frame import NULL, Frame

# A handler that may catch an error has one of these opcodes before its first `RERAISE`. A plain `finally` has none.
CATCHING_OPCODES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"})
PADDING_OPCODES = frozenset({"CACHE", "NOP", "NOT_TAKEN"})

# Opcodes between a condition and its jump.
CONDITION_OPCODES = frozenset({"TO_BOOL", "COMPARE_OP"})
# Prefixes of opcodes that a branch does not contain if it only raises an error.
CONTINUING_PREFIXES = ("STORE_", "DELETE_", "RETURN", "JUMP", "POP_JUMP", "FOR_ITER", "YIELD", "SEND", "RERAISE")

Errors = tuple[type[BaseException], ...]
Clause = tuple[str, ...] | None  # the global names of the classes that an `except` clause catches


def is_caught(frame: Frame | None, errors: Errors = ()) -> bool:
    """Whether a frame or a caller may catch an error of these classes. Without classes: whether it may catch any."""
    while frame is not None:
        if may_catch(frame, errors):
            return True
        frame = frame.back
    return False


def may_catch(frame: Frame, errors: Errors) -> bool:
    """Whether an `except` clause or a context manager around a frame's current step may catch an error.

    `errors` has the error's possible classes; it is empty if these are unknown.
    """
    program = frame.program
    handler = program.exception_handlers[frame.pc]
    while handler is not None:
        names = handler_opcodes(frame.code, program.offsets[handler.target])
        if names[1:2] == ("WITH_EXCEPT_START",):
            if may_suppress(exit_of_with(frame, handler.depth)):
                return True
        elif names[0] == "PUSH_EXC_INFO" and CATCHING_OPCODES.intersection(names):
            handler_clauses = except_clauses(frame.code, program.offsets[handler.target])
            if not errors or any(may_match(frame, errors, clause) for clause in handler_clauses):
                return True
        handler = program.exception_handlers[handler.target]
    return False


def has_finally(frame: Frame | None, is_counted: Callable[[CodeType], bool]) -> bool:
    """Whether a `finally` of a frame or a caller runs if the current step raises.

    Only frames whose code satisfies `is_counted` are considered.
    """
    while frame is not None:
        if is_counted(frame.code) and _runs_finally(frame):
            return True
        frame = frame.back
    return False


def _runs_finally(frame: Frame) -> bool:
    """Whether a frame's current step is within a `try` statement with a `finally`."""
    program = frame.program
    handler = program.exception_handlers[frame.pc]
    while handler is not None:
        names = handler_opcodes(frame.code, program.offsets[handler.target])
        is_of_with = names[1:2] == ("WITH_EXCEPT_START",)
        if names[0] == "PUSH_EXC_INFO" and not is_of_with and not CATCHING_OPCODES.intersection(names):
            return True
        handler = program.exception_handlers[handler.target]
    return False


def exit_of_with(frame: Frame, depth: int) -> Any:
    """Return the `__exit__` of a `with` statement, given the stack depth of its handler.

    Since 3.14, a NULL is above the `__exit__`.
    """
    top = frame.stack[depth - 1]
    return frame.stack[depth - 2] if top is NULL else top


def may_match(frame: Frame, errors: Errors, clause: Clause) -> bool:
    """Whether an `except` clause may match an error of these classes. A clause with unknown classes may match."""
    if clause is None:
        return True
    kinds = [frame.globals.get(name, frame.builtins.get(name)) for name in clause]
    return any(not isinstance(kind, type) or any(issubclass(error, kind) for error in errors) for kind in kinds)


def is_error_check(frame: Frame) -> bool:
    """Whether the frame is about to branch, and one side of the branch only raises an error that no frame catches."""
    return only_raises(frame.code, frame.program.offsets[frame.pc]) and not is_caught(frame)


@lru_cache(maxsize=4096)
def only_raises(code: CodeType, offset: int) -> bool:
    """Whether a side of the branch at an offset only raises an error."""
    instructions = [
        instruction for instruction in dis.get_instructions(code) if instruction.opname not in PADDING_OPCODES
    ]
    indices = {instruction.offset: index for index, instruction in enumerate(instructions)}
    index = indices[offset]
    while instructions[index].opname in CONDITION_OPCODES:
        index += 1
    jump = instructions[index]
    if not jump.opname.startswith("POP_JUMP"):
        return False
    return any(is_raising(instructions, target) for target in (index + 1, indices.get(jump.argval, len(instructions))))


def is_raising(instructions: list[dis.Instruction], index: int) -> bool:
    """Whether the instructions from an index on build an error and raise it, without a branch or an assignment."""
    names = (instruction.opname for instruction in instructions[index:])
    end = next((name for name in names if name == "RAISE_VARARGS" or name.startswith(CONTINUING_PREFIXES)), "")
    return end == "RAISE_VARARGS"


@lru_cache(maxsize=4096)
def except_clauses(code: CodeType, offset: int) -> tuple[Clause, ...]:
    """Return the `except` clauses of a handler in order: the global names of their classes, or None if unknown."""
    instructions = [
        instruction for instruction in dis.get_instructions(code) if instruction.opname not in PADDING_OPCODES
    ]
    indices = {instruction.offset: index for index, instruction in enumerate(instructions)}
    index = indices[offset] + 1  # after `PUSH_EXC_INFO`
    result: list[Clause] = []
    while instructions[index].opname != "RERAISE":
        names = []
        while instructions[index].opname == "LOAD_GLOBAL":
            names.append(instructions[index].argval)
            index += 1
        if len(names) > 1 and instructions[index].opname == "BUILD_TUPLE" and instructions[index].arg == len(names):
            index += 1
        elif len(names) != 1:
            return (*result, None)
        match, jump = instructions[index], instructions[index + 1]
        if match.opname != "CHECK_EXC_MATCH" or not jump.opname.endswith("IF_FALSE"):
            return (*result, None)
        result.append(tuple(names))
        index = indices.get(jump.argval, len(instructions) - 1)
    return tuple(result)


@lru_cache(maxsize=4096)
def handler_opcodes(code: CodeType, offset: int) -> tuple[str, ...]:
    """Return the opcode names of a handler's instructions, up to the instruction that raises the error again."""
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset >= offset:
            names.append(instruction.opname)
            if instruction.opname == "RERAISE":
                break
    return tuple(names)


def may_suppress(exit_method: object) -> bool:
    """Whether a context manager, or its `__exit__`, may suppress an error. PyTorch's context managers do not."""
    manager = callable_attribute(exit_method, "__self__", exit_method)
    is_generator = issubclass_natively(type(manager), contextlib._GeneratorContextManager)
    function = vars(manager).get("func") if is_generator else None
    module = str(getattr(function or type(manager), "__module__", ""))
    return module.partition(".")[0] != "torch" and type(manager) is not contextlib.nullcontext
