"""Calls, and the creation of functions and classes.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.keywords import merge_keywords, unpack_arguments
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import opcode

_LISTS_UNPACKED_ARGUMENTS = sys.version_info >= (3, 12)


def _call(context: DecodingContext, count: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of arguments, and the names of the keyword arguments."""
    return count, context.keyword_names


@opcode("CALL", prepare=_call)
def call(frame: Frame, argument: tuple[int, tuple[str, ...]]) -> None:
    """[NULL, function, arguments] or [function, first argument, arguments] -> [result]."""
    count, names = argument
    stack = frame.stack
    base = len(stack) - count
    arguments = stack[base:]
    function = stack[base - 1]
    first = stack[base - 2]
    del stack[base - 2 :]
    if first is not NULL:
        arguments.insert(0, function)
        function = first
    keywords: dict[str, Any] = {}
    if names:
        split = len(arguments) - len(names)
        keywords = dict(zip(names, arguments[split:], strict=True))
        del arguments[split:]
    stack.append(call_with(frame, function, arguments, keywords))


def call_with(frame: Frame, function: object, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Call a function with arguments that only this call refers to, so that they are freed as in CPython.

    The arguments of a Python function move into its frame. Arguments of other functions are freed when the call
    returns, one by one, beginning with the first argument. If they were freed together with their list, CPython would
    delay deallocations that are deeply nested.
    """
    try:
        return frame.machine.invoke(function, arguments, keywords)
    finally:
        arguments.reverse()
        arguments.clear()


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, flags: int) -> None:
    """[NULL, function, arguments, (keywords)] -> [result]."""
    stack = frame.stack
    keywords = stack.pop() if flags & 1 else {}
    arguments = stack.pop()
    function = stack.pop()
    stack.pop()
    machine = frame.machine
    if type(keywords) is not dict:
        merged: dict[Any, Any] = {}
        merge_keywords(frame, merged, keywords, function)
        keywords = merged
    arguments = arguments_for_call(function, unpack_arguments(machine, arguments, function))
    for key in keywords:
        if not isinstance(key, str):
            raise TypeError("keywords must be strings")
    stack.append(machine.invoke(function, arguments, keywords))


def arguments_for_call(function: object, arguments: tuple[Any, ...]) -> Sequence[Any]:
    """Return unpacked arguments. Since 3.12, those of a Python function are in a list, and move into its frame."""
    return list(arguments) if _LISTS_UNPACKED_ARGUMENTS and type(function) is FunctionType else arguments


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, flags: int) -> None:
    """[(defaults), (keyword defaults), (annotations), (closure), code] -> [function]."""
    stack = frame.stack
    code = stack.pop()
    closure = stack.pop() if flags & 8 else None
    annotations = stack.pop() if flags & 4 else None
    keyword_defaults = stack.pop() if flags & 2 else None
    defaults = stack.pop() if flags & 1 else None
    function = FunctionType(code, frame.globals, code.co_name, defaults, closure)
    if keyword_defaults is not None:
        function.__kwdefaults__ = keyword_defaults
    if annotations is not None:
        if type(annotations) is tuple:
            annotations = dict(zip(annotations[::2], annotations[1::2], strict=True))
        function.__annotations__ = annotations
    stack.append(function)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, _argument: object) -> None:
    """[] -> [__build_class__]."""
    try:
        builder = frame.builtins["__build_class__"]
    except KeyError:
        builder = NULL
    if builder is NULL:
        raise NameError("__build_class__ not found")
    frame.stack.append(builder)
