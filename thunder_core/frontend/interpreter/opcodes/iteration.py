"""Iteration and unpacking.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.bridges import gather
from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.lookup import type_lookup, type_name
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.tracing.library.changes.class_entries import ABSENT


@opcode("GET_ITER")
def get_iter(frame: Frame, _argument: object) -> None:
    """[value] -> [iter(value)]."""
    frame.stack[-1] = operators.iterate(frame.machine, frame.stack[-1])


@opcode("FOR_ITER")
def for_iter(frame: Frame, target: int) -> int | None:
    """[iterator] -> [iterator, next value]; or [] and jump if the iterator is exhausted."""
    stack = frame.stack
    value = operators.advance(frame.machine, stack[-1], NULL)
    if value is NULL:
        stack.pop()
        return target
    stack.append(value)
    return None


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, count: int) -> None:
    """[iterable] -> [last, ..., first]."""
    value = frame.stack.pop()
    kind = type(value)
    if (kind is tuple or kind is list) and len(value) == count:
        items = frame.machine.operate(list, value) if kind is list else list(value)
    else:
        items = _unpack_exactly(frame, value, count)
    items.reverse()
    frame.stack.extend(items)


def _unpack_exactly(frame: Frame, value: Any, count: int) -> list[Any]:
    """Return the items of an iterable; raise ValueError unless there are exactly `count` items."""
    kind = type(value)
    if kind in (tuple, list):
        if len(value) > count:
            raise ValueError(f"too many values to unpack (expected {count})")
        items = list(value)
    else:
        iterator = unpack_iterator(frame, value)
        items = _take(frame, iterator, count)
        if len(items) == count and operators.advance(frame.machine, iterator, NULL) is not NULL:
            raise ValueError(f"too many values to unpack (expected {count})")
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    return items


def _take(frame: Frame, iterator: object, count: int) -> list[Any]:
    """Return up to `count` items of an iterator."""
    items: list[Any] = []
    while len(items) < count:
        item = operators.advance(frame.machine, iterator, NULL)
        if item is NULL:
            break
        items.append(item)
    return items


def unpack_iterator(frame: Frame, value: object) -> Any:
    """Return the iterator of a value that is unpacked; raise TypeError if the value is not iterable."""
    kind = type(value)
    if type_lookup(kind, "__iter__") is ABSENT and type_lookup(kind, "__getitem__") is ABSENT:
        raise TypeError(f"cannot unpack non-iterable {type_name(kind)} object")
    return operators.iterate(frame.machine, value)


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, argument: int) -> None:
    """[iterable] -> [last, ..., list of the middle items, ..., first]."""
    before, after = argument & 0xFF, argument >> 8
    iterator = unpack_iterator(frame, frame.stack.pop())
    items = _take(frame, iterator, before)
    if len(items) < before:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    rest = gather(frame.machine, list, iterator)
    if len(rest) < after:
        got = before + len(rest)
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {got})")
    last = rest[len(rest) - after :]
    frame.stack.extend([*reversed(last), rest[: len(rest) - after], *reversed(items)])
