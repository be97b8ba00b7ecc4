"""The choice of functions that the prologue calls because they draw random arrays and read the values of the arrays.

A trace of such a function would be valid only for the drawn values. Therefore, the prologue calls the function at each
call of the program, if the arguments are constants and tensors that the prologue can compute, and if the function
neither writes to outside objects nor calls functions of PyTorch. The function also runs once at tracing, so an effect
of the function would happen twice at the first call.
"""

from __future__ import annotations

import _random
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.outside.function_effects import may_have_effects
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.tracing.ir.constants import is_constant


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
    arguments = arguments_of(frame)
    return (
        frame.function is not None
        and len(arguments) > 0
        and all(can_be_passed(argument, is_computable) for argument in arguments)
        and not may_have_effects(frame.function)
    )


def arguments_of(frame: Frame) -> list[Any]:
    """Return the values of a function's parameters; the values in `**kwargs` are separate arguments."""
    flags = frame.code.co_flags
    named = frame.code.co_argcount + frame.code.co_kwonlyargcount
    count = named + bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
    arguments = [slot.cell_contents if type(slot) is types.CellType else slot for slot in frame.fast[:count]]
    if flags & inspect.CO_VARKEYWORDS and type(arguments[-1]) is dict:
        arguments += arguments.pop().values()
    return arguments


def can_be_passed(value: Any, is_computable: Callable[[Any], bool]) -> bool:
    """Whether the prologue can pass an argument: a constant, a computable tensor, or a tuple of them.

    A list is not passed, because the function could write to it, and the prologue has only a copy.
    """
    if type(value) is tuple:
        return all(can_be_passed(item, is_computable) for item in value)
    return is_constant(value) or is_computable(value)


def numpy_generators(numpy: Any) -> tuple[type, ...]:
    """Return the classes of NumPy's generators."""
    return numpy.RandomState, numpy.Generator, numpy.BitGenerator


def is_generator(value: object) -> bool:
    """Whether a value is a random number generator of Python or NumPy."""
    return is_generator_class(type(value))  # not isinstance, which reads the value's own `__class__`


def is_generator_class(kind: type) -> bool:
    """Whether the instances of a class are random number generators of Python or NumPy."""
    if issubclass(kind, _random.Random):
        return True
    numpy = numpy_random()
    return numpy is not None and issubclass(kind, numpy_generators(numpy))


def numpy_random() -> Any:
    """Return the module `numpy.random`; None if it has not been imported."""
    return sys.modules.get("numpy.random")
