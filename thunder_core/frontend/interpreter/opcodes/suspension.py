"""Suspension: yield, yield from, await, and the asynchronous protocols.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

import inspect
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import YIELDED, Frame
from thunder_core.frontend.interpreter.generators import delegate, is_coroutine
from thunder_core.frontend.interpreter.lookup import type_lookup, type_name
from thunder_core.frontend.interpreter.table import LEAVE, opcode
from thunder_core.frontend.interpreter.tracebacks import reraise, without_own_entries
from thunder_core.tracing.library.changes.class_entries import ABSENT


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, _argument: object) -> int:
    """[value] -> []; the sent value is pushed when the frame is resumed."""
    frame.suspended = YIELDED
    frame.resume_at = frame.pc + 1
    return LEAVE


@opcode("ASYNC_GEN_WRAP")
def async_gen_wrap(_frame: Frame, _argument: object) -> None:
    """[value] -> [value]; the driver of asynchronous generators wraps the value."""


@opcode("SEND", until=(3, 12))
def send(frame: Frame, target: int) -> int:
    """[iterator, None] -> [result of the iterator]; the frame yields what the iterator yields."""
    stack = frame.stack
    stack.pop()
    delegate(frame, stack[-1], target)
    return LEAVE


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, _argument: object) -> None:
    """[iterable] -> [iterator to delegate to]."""
    value = frame.stack[-1]
    if type(value) is CoroutineType:
        if not frame.code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
            raise TypeError("cannot 'yield from' a coroutine object in a non-coroutine generator")
    elif type(value) is not GeneratorType:
        frame.stack[-1] = operators.iterate(frame.machine, value)


@opcode("GET_AWAITABLE")
def get_awaitable(frame: Frame, where: int) -> None:
    """[awaitable] -> [iterator or coroutine to delegate to]."""
    value = frame.stack[-1]
    if type(value) is CoroutineType and value.cr_await is not None:
        raise RuntimeError("coroutine is being awaited already")
    if is_coroutine(value):
        return
    frame.stack[-1] = _await_iterator(frame, value, where)


def _await_iterator(frame: Frame, value: object, where: int) -> Any:
    """Return the iterator from an object's `__await__`."""
    kind = type(value)
    method = operators.special(frame.machine, value, "__await__")
    if method is ABSENT or method is None:
        if where in (1, 2):
            name = ("__aenter__", "__aexit__")[where - 1]
            raise TypeError(
                f"'async with' received an object from {name} that does not implement __await__: {type_name(kind)}"
            )  # fmt: skip
        raise TypeError(f"object {type_name(kind)} can't be used in 'await' expression")
    return check_iterator(frame.machine.invoke(method, (), {}))


def check_iterator(iterator: object) -> Any:
    """Return the result of `__await__` if it is valid; raise CPython's TypeError otherwise."""
    if is_coroutine(iterator):
        raise TypeError("__await__() returned a coroutine")
    if type_lookup(type(iterator), "__next__") in (ABSENT, None):
        raise TypeError(f"__await__() returned non-iterator of type '{type_name(type(iterator))}'")
    return iterator


@opcode("GET_AITER")
def get_aiter(frame: Frame, _argument: object) -> None:
    """[iterable] -> [its asynchronous iterator]."""
    value = frame.stack[-1]
    method = operators.special(frame.machine, value, "__aiter__")
    if method is ABSENT or method is None:
        raise TypeError(f"'async for' requires an object with __aiter__ method, got {type_name(type(value))}")
    iterator = frame.machine.invoke(method, (), {})
    if type_lookup(type(iterator), "__anext__") in (ABSENT, None):
        refused = "'async for' received an object from __aiter__ that does not implement __anext__"
        raise TypeError(f"{refused}: {type_name(type(iterator))}")
    frame.stack[-1] = iterator


@opcode("GET_ANEXT")
def get_anext(frame: Frame, _argument: object) -> None:
    """[asynchronous iterator] -> [asynchronous iterator, iterator that returns its next value]."""
    iterator = frame.stack[-1]
    method = operators.special(frame.machine, iterator, "__anext__")
    if method is ABSENT or method is None:
        raise TypeError(f"'async for' requires an iterator with __anext__ method, got {type_name(type(iterator))}")
    awaitable = frame.machine.invoke(method, (), {})
    if type(iterator) is not AsyncGeneratorType:
        awaitable = _anext_iterator(frame, awaitable)
    frame.stack.append(awaitable)


def _anext_iterator(frame: Frame, awaitable: object) -> Any:
    """Return the iterator for the result of `__anext__`."""
    if is_coroutine(awaitable):
        return awaitable
    try:
        return _await_iterator(frame, awaitable, 0)
    except Exception as refusal:
        refusal.__traceback__ = without_own_entries(refusal.__traceback__)
        error = refusal
    try:
        kind = type(awaitable).__name__
        raise TypeError(f"'async for' received an invalid object from __anext__: {kind}") from error
    finally:
        del error


@opcode("END_ASYNC_FOR")
def end_async_for(frame: Frame, _argument: object) -> int | None:
    """[asynchronous iterator, error] -> []; errors other than the end of iteration are raised again."""
    stack = frame.stack
    error = stack.pop()
    if isinstance(error, StopAsyncIteration):
        stack.pop()
        return None
    return reraise(frame, error)
