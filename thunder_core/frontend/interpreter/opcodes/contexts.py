"""The with statement.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.lookup import type_name
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.tracing.library.changes.class_entries import ABSENT


def _enter(frame: Frame, enter: str, leave: str, kind: str) -> Any:
    """Replace the context manager on the stack by its exit method. Call its enter method, and return the result."""
    machine = frame.machine
    manager = frame.stack[-1]
    entering = operators.special(machine, manager, enter)
    if entering is ABSENT:
        raise TypeError(f"'{type_name(type(manager))}' object does not support the {kind} protocol")
    leaving = operators.special(machine, manager, leave)
    if leaving is ABSENT:
        missed = f"'{type_name(type(manager))}' object does not support the {kind} protocol (missed {leave} method)"
        raise TypeError(missed)
    frame.stack[-1] = leaving
    return machine.invoke(entering, (), {})


@opcode("BEFORE_WITH")
def before_with(frame: Frame, _argument: object) -> None:
    """[manager] -> [its __exit__, value of its __enter__]."""
    frame.stack.append(_enter(frame, "__enter__", "__exit__", "context manager"))


@opcode("BEFORE_ASYNC_WITH")
def before_async_with(frame: Frame, _argument: object) -> None:
    """[manager] -> [its __aexit__, value of its __aenter__]."""
    frame.stack.append(_enter(frame, "__aenter__", "__aexit__", "asynchronous context manager"))


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, _argument: object) -> None:
    """[exit, position, error before, error] -> [exit, position, error before, error, value of exit]."""
    stack = frame.stack
    error = stack[-1]
    stack.append(frame.machine.invoke(stack[-4], (type(error), error, error.__traceback__), {}))
