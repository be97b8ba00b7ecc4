"""Functions of the program that draw arrays and compute with them: the prologue calls them as a whole.

A function that reads the values of arrays that it drew would be traced for these values only. If its arguments are
constants and tensors that the prologue can compute, and it neither writes to outside objects nor calls PyTorch's
functions, the prologue can call it instead.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.tracing.ir.constants import is_constant

WRITING = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL", "YIELD_VALUE", "SEND"})
PYTORCH = "torch"


def outermost_drawing(frame: Frame | None, is_computable: Callable[[Any], bool]) -> types.CodeType | None:
    """Return the code of the outermost running function that may be called as a whole, or None.

    `is_computable` tells whether the prologue can compute a tensor. The program itself cannot be called as a whole.
    """
    code = None
    while frame is not None:
        if frame.function is not None and may_be_called_whole(frame, is_computable if frame.back else is_never):
            code = frame.code
        frame = frame.back
    return code


def is_never(_value: Any) -> bool:
    """Refuse every tensor."""
    return False


def may_be_called_whole(frame: Frame, is_computable: Callable[[Any], bool]) -> bool:
    """Whether the function of a frame only computes, from constants and from tensors that the prologue computes."""
    code, function = frame.code, frame.function
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = [slot.cell_contents if type(slot) is types.CellType else slot for slot in frame.fast[:count]]
    return (
        function is not None
        and count > 0
        and not code.co_freevars
        and not any(map(is_writing, codes_of(code)))
        and not any(is_of_torch(function.__globals__.get(name)) for inner in codes_of(code) for name in inner.co_names)
        and all(is_tree_of(is_computable, argument) for argument in arguments)
    )


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@cache
def is_writing(code: types.CodeType) -> bool:
    """Whether code writes to attributes or globals, or yields a value."""
    return any(instruction.opname in WRITING for instruction in dis.get_instructions(code))


def is_of_torch(value: Any) -> bool:
    """Whether a value is PyTorch itself, or one of its modules, functions or classes."""
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] == PYTORCH


def is_tree_of(is_computable: Callable[[Any], bool], value: Any) -> bool:
    """Whether an argument is a constant or computable, or a tuple or list of such values."""
    if type(value) in (tuple, list):
        return all(is_tree_of(is_computable, item) for item in value)
    return is_constant(value) or is_computable(value)
