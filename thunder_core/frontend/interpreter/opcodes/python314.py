"""The opcodes that Python 3.14 changed: borrowed locals, small and common constants, `with`, subscripts, templates.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.keywords import merge_keywords, unpack_arguments
from thunder_core.frontend.interpreter.namespaces import find_global
from thunder_core.frontend.interpreter.opcodes.calls import arguments_for_call
from thunder_core.frontend.interpreter.opcodes.exceptions import check_eg_match as check_group
from thunder_core.frontend.interpreter.opcodes.names import load_fast, load_from_namespace
from thunder_core.frontend.interpreter.opcodes.operate import binary_op, binary_subscr
from thunder_core.frontend.interpreter.opcodes.python313 import load_fast_load_fast, set_function_attribute
from thunder_core.frontend.interpreter.opcodes.stack import load_const, pop_top
from thunder_core.frontend.interpreter.opcodes.suspension import end_async_for
from thunder_core.frontend.interpreter.operators import BINARY
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.tracing.library.changes.class_entries import ABSENT

templates: Any = None
with suppress(ImportError):  # before 3.14
    from string import templatelib as templates  # type: ignore[attr-defined,no-redef]

_3_14 = (3, 14)

# CPython counts no reference for a borrowed local. Here the stack has a normal reference to the object.
opcode("LOAD_FAST_BORROW", since=_3_14)(load_fast)
opcode("LOAD_FAST_BORROW_LOAD_FAST_BORROW", since=_3_14)(load_fast_load_fast)
opcode("LOAD_SMALL_INT", since=_3_14)(load_const)
opcode("POP_ITER", since=_3_14)(pop_top)


def _no_jump(_context: DecodingContext, argument: int) -> int:
    """Return the argument unchanged: it is the beginning of the loop, for debuggers, and not a jump target."""
    return argument


opcode("END_ASYNC_FOR", since=_3_14, prepare=_no_jump)(end_async_for)

_COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)


@opcode("LOAD_COMMON_CONSTANT", since=_3_14)
def load_common_constant(frame: Frame, number: int) -> None:
    """[] -> [a class or function of the builtins]."""
    frame.stack.append(_COMMON_CONSTANTS[number])


@opcode("LOAD_FROM_DICT_OR_GLOBALS", since=_3_14)
def load_from_dict_or_globals(frame: Frame, name: str) -> None:
    """[namespace] -> [value of the name in the namespace, otherwise the global or builtin, as LOAD_GLOBAL finds it]."""
    value = load_from_namespace(frame, frame.stack.pop(), name)
    frame.stack.append(frame.machine.load_global(frame, name, find_global) if value is NULL else value)


_SUBSCRIPT_NUMBER = 26


def _binary(_context: DecodingContext, argument: int) -> Callable[[Any, Any], Any] | None:
    """Return the operator; None for a subscript."""
    return None if argument == _SUBSCRIPT_NUMBER else BINARY[argument]


@opcode("BINARY_OP", since=_3_14, prepare=_binary)
def binary_op_or_subscript(frame: Frame, function: Callable[[Any, Any], Any] | None) -> None:
    """[left, right] -> [left ? right], or [container, key] -> [container[key]]."""
    if function is None:
        binary_subscr(frame, None)
    else:
        binary_op(frame, function)


@opcode("CALL_FUNCTION_EX", since=_3_14)
def call_function_ex(frame: Frame, _argument: object) -> None:
    """[function, NULL, arguments, keywords or NULL] -> [result]."""
    stack, machine = frame.stack, frame.machine
    keywords, arguments = stack.pop(), stack.pop()
    stack.pop()
    function = stack.pop()
    if keywords is NULL:
        keywords = {}
    elif type(keywords) is not dict:
        merged: dict[Any, Any] = {}
        merge_keywords(frame, merged, keywords, function)
        keywords = merged
    arguments = arguments_for_call(function, unpack_arguments(machine, arguments, function))
    if any(not isinstance(key, str) for key in keywords):
        raise TypeError("keywords must be strings")
    stack.append(machine.invoke(function, arguments, keywords))


_ANNOTATE_FLAG = 16


@opcode("SET_FUNCTION_ATTRIBUTE", since=_3_14)
def set_function_attribute_or_annotate(frame: Frame, flag: int) -> None:
    """[value, function] -> [function with the value]; the value may be the function's `__annotate__`."""
    if flag == _ANNOTATE_FLAG:
        function = frame.stack.pop()
        function.__annotate__ = frame.stack[-1]
        frame.stack[-1] = function
    else:
        set_function_attribute(frame, flag)


_PROTOCOLS = {
    "__enter__": ("context manager", "__aenter__", "asynchronous context manager", "async with"),
    "__aenter__": ("asynchronous context manager", "__enter__", "context manager", "with"),
}
_SPECIAL_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")
_ENTER_OF_EXIT = {"__exit__": "__enter__", "__aexit__": "__aenter__"}


@opcode("LOAD_SPECIAL", since=_3_14)
def load_special(frame: Frame, number: int) -> None:
    """[owner] -> [special method of its class, NULL]."""
    owner, name = frame.stack[-1], _SPECIAL_METHODS[number]
    method = operators.special(frame.machine, owner, name)
    if method is ABSENT:
        raise TypeError(_missing_method_message(type(owner), name))
    frame.stack[-1] = method
    frame.stack.append(NULL)


def _missing_method_message(kind: type, name: str) -> str:
    """Return CPython's message for a manager without a method.

    The message suggests `async with` or `with` if the manager supports that statement.
    """
    enter = _ENTER_OF_EXIT.get(name, name)
    protocol, other, other_protocol, statement = _PROTOCOLS[enter]
    other_leave = other.replace("enter", "exit")
    owner = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = f"{owner!r} object does not support the {protocol} protocol (missed {name} method)"
    if all(any(method in vars(base) for base in kind.__mro__) for method in (other, other_leave)):
        message += f" but it supports the {other_protocol} protocol. Did you mean to use '{statement}'?"
    return message


@opcode("WITH_EXCEPT_START", since=_3_14)
def with_except_start(frame: Frame, _argument: object) -> None:
    """[exit, NULL, position, error before, error] -> [exit, NULL, position, error before, error, value of exit]."""
    stack = frame.stack
    error = stack[-1]
    stack.append(frame.machine.invoke(stack[-5], (type(error), error, error.__traceback__), {}))


@opcode("CHECK_EG_MATCH", since=_3_14)
def check_eg_match(frame: Frame, argument: object) -> None:
    """[error, class or tuple] -> [rest, matching part]; a group around a single error has the line of its `except*`."""
    error = frame.stack[-2]
    check_group(frame, argument)
    matched = frame.stack[-1]
    if matched is not None and not isinstance(error, BaseExceptionGroup):
        program = frame.program
        line = program.lines[frame.pc] or frame.code.co_firstlineno
        matched.__traceback__ = TracebackType(None, frame.frame_object(), program.offsets[frame.pc], line)


_CONVERSIONS = (None, "s", "r", "a")


@opcode("BUILD_INTERPOLATION", since=_3_14)
def build_interpolation(frame: Frame, traits: int) -> None:
    """[value, its source, (specification)] -> [interpolation]."""
    stack = frame.stack
    specification = stack.pop() if traits & 1 else ""
    source = stack.pop()
    stack[-1] = templates.Interpolation(stack[-1], source, _CONVERSIONS[traits >> 2], specification)


@opcode("BUILD_TEMPLATE", since=_3_14)
def build_template(frame: Frame, _argument: object) -> None:
    """[strings, interpolations] -> [template]; there is one more string than interpolations."""
    stack = frame.stack
    interpolations = stack.pop()
    strings = stack[-1]
    parts = [part for pair in zip(strings, interpolations, strict=False) for part in pair]
    stack[-1] = templates.Template(*parts, strings[-1])
