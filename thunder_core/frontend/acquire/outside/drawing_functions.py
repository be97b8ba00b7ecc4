"""Functions of the program that draw random arrays and read their values: the prologue calls such a function itself.

A trace of such a function would be valid only for the drawn values. Therefore, the prologue calls the function at each
call of the program, if the arguments are constants and tensors that the prologue can compute, and if the function
neither writes to outside objects nor calls functions of PyTorch.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.tracing.ir.constants import is_constant

WRITES_AND_YIELDS = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL", "YIELD_VALUE", "SEND"})
PYTORCH = "torch"


def outermost_callable_function(frame: Frame | None, is_computable: Callable[[Any], bool]) -> types.CodeType | None:
    """Return the code of the outermost running function that the prologue can call, or None.

    `frame` is the frame of the innermost function. `is_computable` returns whether the prologue can compute a tensor.
    The code of the program itself is returned only if its arguments are constants.
    """
    code = None
    while frame is not None:
        is_program = frame.back is None
        if is_callable_in_prologue(frame, is_never_computable if is_program else is_computable):
            code = frame.code
        frame = frame.back
    return code


def is_never_computable(_value: object) -> bool:
    """Return False: the prologue passes no tensor to the program itself."""
    return False


def is_callable_in_prologue(frame: Frame, is_computable: Callable[[Any], bool]) -> bool:
    """Whether the prologue can call the function of a frame with its arguments, and the call has no side effects."""
    code, function = frame.code, frame.function
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = [slot.cell_contents if type(slot) is types.CellType else slot for slot in frame.fast[:count]]
    return (
        function is not None
        and count > 0
        and not code.co_freevars
        and not any(map(writes_or_yields, codes_of(code)))
        and not any(
            belongs_to_torch(function.__globals__.get(name)) for inner in codes_of(code) for name in inner.co_names
        )
        and all(can_be_passed(argument, is_computable) for argument in arguments)
    )


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@cache
def writes_or_yields(code: types.CodeType) -> bool:
    """Whether a function writes to attributes or globals, or is a generator."""
    return any(instruction.opname in WRITES_AND_YIELDS for instruction in dis.get_instructions(code))


def belongs_to_torch(value: object) -> bool:
    """Whether a value is PyTorch itself, or one of its modules, functions or classes."""
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return is_name_of_torch(home)


def is_name_of_torch(module: object) -> bool:
    """Whether the name of a module is `torch`, or begins with `torch.`."""
    return str(module).partition(".")[0] == PYTORCH


def can_be_passed(value: Any, is_computable: Callable[[Any], bool]) -> bool:
    """Whether the prologue can pass an argument: a constant, a computable tensor, or a tuple or list of them."""
    if type(value) in (tuple, list):
        return all(can_be_passed(item, is_computable) for item in value)
    return is_constant(value) or is_computable(value)
