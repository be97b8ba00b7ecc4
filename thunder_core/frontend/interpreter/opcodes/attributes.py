"""Attributes of objects.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.table import opcode


@opcode("LOAD_ATTR")
def load_attr(frame: Frame, name: str) -> None:
    """[owner] -> [owner.name]."""
    stack = frame.stack
    stack[-1] = frame.machine.load_attr(stack[-1], name)


@opcode("LOAD_METHOD")
def load_method(frame: Frame, name: str) -> None:
    """[owner] -> [NULL, owner.name]; CPython avoids the bound method, which makes no visible difference."""
    stack = frame.stack
    value = frame.machine.load_attr(stack[-1], name)
    stack[-1] = NULL
    stack.append(value)


@opcode("STORE_ATTR")
def store_attr(frame: Frame, name: str) -> None:
    """[value, owner] -> []; owner.name = value."""
    owner, value = frame.stack.pop(), frame.stack.pop()
    frame.machine.store_attr(owner, name, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, name: str) -> Any:
    """[owner] -> []; del owner.name."""
    frame.machine.delete_attr(frame.stack.pop(), name)
