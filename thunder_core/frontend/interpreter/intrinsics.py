"""The intrinsic functions of Python 3.12 and later.

Only bytecode can call an intrinsic function in C, so this module patches the bytecode of Python functions.
"""

import builtins
import dis
import inspect
import operator
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

POSITIVE = operator.pos


@cache
def unary(number: int) -> Callable[[Any], Any]:
    """Return the intrinsic function of one argument with this number."""
    return _patch(lambda value: -value, "UNARY_NEGATIVE", "CALL_INTRINSIC_1", number)


@cache
def binary(number: int) -> Callable[[Any, Any], Any]:
    """Return the intrinsic function of two arguments with this number."""
    return _patch(lambda first, second: first + second, "BINARY_OP", "CALL_INTRINSIC_2", number)


def _patch(function: Any, replaced: str, replacement: str, argument: int) -> Callable[..., Any]:
    """Return a copy of a function with one instruction, including its caches, replaced by another."""
    code: CodeType = function.__code__
    bytecode = bytearray(code.co_code)
    for offset in range(0, len(bytecode), 2):
        if dis.opname[bytecode[offset]] == replaced:
            bytecode[offset : offset + 2] = bytes((dis.opmap[replacement], argument))
            following = offset + 2
            while dis.opname[bytecode[following]] == "CACHE":
                bytecode[following : following + 2] = bytes((dis.opmap["NOP"], 0))
                following += 2
    return FunctionType(code.replace(co_code=bytes(bytecode)), {"__builtins__": builtins, "__name__": __name__})


def stop_iteration_error(code: CodeType, error: BaseException) -> BaseException:
    """Return the RuntimeError that a generator raises in place of StopIteration; return other errors unchanged."""
    flags = code.co_flags
    kind = "generator"
    if flags & inspect.CO_ASYNC_GENERATOR:
        kind = "async generator"
    elif flags & inspect.CO_COROUTINE:
        kind = "coroutine"
    if isinstance(error, StopIteration):
        name = "StopIteration"
    elif isinstance(error, StopAsyncIteration) and kind == "async generator":
        name = "StopAsyncIteration"
    else:
        return error
    raised = RuntimeError(f"{kind} raised {name}")
    raised.__cause__ = raised.__context__ = error
    return raised
