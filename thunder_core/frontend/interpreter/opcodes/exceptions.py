"""Raising, catching and handling exceptions, with CPython's own exception state of the thread.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

import sys

from thunder_core.frontend.interpreter import raising
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.native import set_handled_exception
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.frontend.interpreter.tracebacks import reraise


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, count: int) -> int | None:
    """[(raised), (cause)] -> []."""
    if not count:
        return reraise(frame, raising.handled_exception(frame.machine))
    stack = frame.stack
    cause = stack.pop() if count == 2 else None
    return raising.raise_new(frame.machine, stack.pop(), cause, count == 2)


@opcode("RERAISE")
def reraise_caught(frame: Frame, depth: int) -> int:
    """[(position), ..., error] -> []; the position is `depth` below the error."""
    error = frame.stack.pop()
    position = frame.stack[-depth] if depth else None
    return reraise(frame, error, position if isinstance(position, int) else None)


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, _argument: object) -> None:
    """[error] -> [error handled before, error]; the error becomes the handled one."""
    stack = frame.stack
    error = stack[-1]
    stack[-1] = sys.exception() if frame.handling or not frame.program.is_resumable else None
    stack.append(error)
    frame.handling += 1
    set_handled_exception(error)


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, _argument: object) -> None:
    """[error handled before] -> []; the earlier error becomes the handled one again."""
    frame.handling -= 1
    set_handled_exception(frame.stack.pop())


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, _argument: object) -> None:
    """[error, class or tuple] -> [error, whether it matches]."""
    stack = frame.stack
    stack[-1] = raising.matches(stack[-2], stack[-1])


@opcode("CHECK_EG_MATCH")
def check_eg_match(frame: Frame, _argument: object) -> None:
    """[error, class or tuple] -> [rest, matching part]."""
    stack = frame.stack
    matched, rest = raising.split_group(frame.machine, stack[-2], stack[-1])
    stack[-2:] = [rest, matched]
    if matched is not None:
        set_handled_exception(matched)


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(frame: Frame, _argument: object) -> None:
    """[original, list of raised] -> [error to raise or None]."""
    stack = frame.stack
    raised = stack.pop()
    stack[-1] = raising.merge_exceptions(stack[-1], raised)
