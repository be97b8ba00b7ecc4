"""Handlers for observed runs. They replace handlers that do not report to the machine.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.namespaces import find_global
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.frontend.interpreter.opcodes import match
from thunder_core.frontend.interpreter.opcodes.build import take
from thunder_core.frontend.interpreter.opcodes.iteration import _unpack_exactly
from thunder_core.frontend.interpreter.opcodes.names import _global
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES, truth
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.tracing.library.changes.abstract_classes import regards


@opcode("LOAD_GLOBAL", observed=True, prepare=_global)
def load_global(frame: Frame, argument: tuple[str, bool]) -> None:
    """[] -> [(NULL), global or builtin]."""
    name, null = argument
    value = frame.machine.load_global(frame, name, find_global)
    if null:
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE", observed=True)
def pop_jump_if_true(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is true."""
    return _branch(frame, target, frame.pc + 1)


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE", observed=True)
def pop_jump_if_false(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is false."""
    return _branch(frame, frame.pc + 1, target)


def _branch(frame: Frame, if_true: int, if_false: int) -> int:
    """Pop a condition, and return the step after the branch: the observer's, if it runs the branch."""
    value = frame.stack.pop()
    if value is True:
        return if_true
    if value is False or value is None:
        return if_false
    if type(value) not in PRIMITIVE_TYPES:
        observer: Any = frame.machine.observer
        after = observer.on_branch(frame, value, if_true, if_false)
        if after is not NOT_TAKEN:
            return int(after)
    return if_true if truth(frame.machine, value) else if_false


@opcode("LOAD_DEREF", observed=True)
def load_deref(frame: Frame, slot: int) -> None:
    """[] -> [contents of the cell]."""
    frame.stack.append(frame.machine.load_deref(frame, slot))


@opcode("STORE_DEREF", observed=True)
def store_deref(frame: Frame, slot: int) -> None:
    """[value] -> []; cell = value."""
    frame.machine.store_deref(frame, slot, frame.stack.pop())


@opcode("DELETE_DEREF", observed=True)
def delete_deref(frame: Frame, slot: int) -> None:
    """[] -> []; empty the cell."""
    frame.machine.delete_deref(frame, slot)


@opcode("UNPACK_SEQUENCE", observed=True)
def unpack_sequence(frame: Frame, count: int) -> None:
    """[iterable] -> [last, ..., first]."""
    value: Any = frame.stack.pop()
    if type(value) in (tuple, list):
        frame.machine.announce_iteration(value)
    frame.stack.extend(reversed(_unpack_exactly(frame, value, count)))


@opcode("BUILD_SET", observed=True)
def build_set(frame: Frame, count: int) -> None:
    """[items] -> [set]."""
    items = take(frame, count)
    for item in items:
        frame.machine.announce_hash(item)
    frame.stack.append(frame.machine.call_unreported(set, (items,), {}))


@opcode("SET_ADD", observed=True)
def set_add(frame: Frame, depth: int) -> None:
    """[set, ..., item] -> [set, ...]."""
    item = frame.stack.pop()
    frame.machine.announce_hash(item)
    frame.machine.call_unreported(frame.stack[-depth].add, (item,), {})


@opcode("SET_UPDATE", observed=True)
def set_update(frame: Frame, depth: int) -> None:
    """[set, ..., iterable] -> [set, ...]."""
    iterable = frame.stack.pop()
    frame.machine.invoke(frame.stack[-depth].update, (iterable,), {})


@opcode("BUILD_MAP", observed=True)
def build_map(frame: Frame, count: int) -> None:
    """[key, value, ...] -> [dict]."""
    items = take(frame, 2 * count)
    keys, values = items[::2], items[1::2]
    for key in keys:
        frame.machine.announce_hash(key)
    frame.stack.append(frame.machine.call_unreported(lambda keys: dict(zip(keys, values, strict=True)), (keys,), {}))


@opcode("MAP_ADD", observed=True)
def map_add(frame: Frame, depth: int) -> None:
    """[dict, ..., key, value] -> [dict, ...]."""
    value, key = frame.stack.pop(), frame.stack.pop()
    frame.machine.announce_hash(key)
    frame.machine.call_unreported(frame.stack[-depth].__setitem__, (key, value), {})


@opcode("MATCH_MAPPING", observed=True)
def match_mapping(frame: Frame, argument: object) -> None:
    """[subject] -> [subject, whether it is a mapping]."""
    _announce_abstract(frame, Mapping)
    match.match_mapping(frame, argument)


@opcode("MATCH_SEQUENCE", observed=True)
def match_sequence(frame: Frame, argument: object) -> None:
    """[subject] -> [subject, whether it is a sequence]."""
    _announce_abstract(frame, Sequence)
    match.match_sequence(frame, argument)


def _announce_abstract(frame: Frame, kind: type) -> None:
    """Announce the check whether the subject's class is registered as a mapping or a sequence."""
    frame.machine.invoke(regards, (kind, type(frame.stack[-1])), {})
