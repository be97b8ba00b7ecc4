"""Functions of the program that draw arrays and compute with them: called by the prologue as a whole.

A function that looks into arrays which it drew would be traced for these values alone. Where its arguments are
constants, and it neither writes to anything outside nor calls PyTorch, the prologue can call it instead.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from thunder_core.tracing.ir.constants import is_constant

WRITING = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL", "YIELD_VALUE", "SEND"})
PYTORCH = "torch"


class NeedsDrawingFunction(BaseException):
    """A function looked into arrays that it drew: the program is recorded with the function as one draw."""

    def __init__(self, code: types.CodeType) -> None:
        super().__init__(code.co_qualname)
        self.code = code


def outermost_drawing(frame: Any) -> types.CodeType | None:
    """The code of the outermost function that may be called as a whole, among those that are running."""
    found = None
    while frame is not None:
        if frame.function is not None and may_be_called_whole(frame):
            found = frame.code
        frame = frame.back
    return found


def may_be_called_whole(frame: Any) -> bool:
    """Whether the function of a frame has constants for arguments, and does nothing but compute."""
    code, function = frame.code, frame.function
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = [held.cell_contents if type(held) is types.CellType else held for held in frame.fast[:count]]
    return (
        count > 0
        and not code.co_freevars
        and not any(is_writing(one) for one in codes_of(code))
        and not any(is_of_torch(function.__globals__.get(name)) for one in codes_of(code) for name in one.co_names)
        and all(map(is_constant_tree, arguments))
    )


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@cache
def is_writing(code: types.CodeType) -> bool:
    """Whether code writes to attributes or globals, or gives something before it ends."""
    return any(instruction.opname in WRITING for instruction in dis.get_instructions(code))


def is_of_torch(value: Any) -> bool:
    """Whether a value is PyTorch itself, or one of its modules, functions and classes."""
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] == PYTORCH


def is_constant_tree(value: Any) -> bool:
    """Whether an argument is a constant, or a tuple or list of such."""
    return all(map(is_constant_tree, value)) if type(value) in (tuple, list) else is_constant(value)
