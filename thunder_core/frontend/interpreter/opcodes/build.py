"""Building tuples, lists, sets, dictionaries, slices and strings.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from collections.abc import Callable
from typing import Any

from thunder_core.frontend.interpreter import texts
from thunder_core.frontend.interpreter.bridges import gather
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.keywords import merge_keywords, merge_mapping
from thunder_core.frontend.interpreter.lookup import type_lookup, type_name
from thunder_core.frontend.interpreter.table import opcode
from thunder_core.tracing.library.changes.class_entries import ABSENT


def take(frame: Frame, count: int) -> list[Any]:
    """Pop `count` values, the deepest first."""
    if not count:
        return []
    values = frame.stack[-count:]
    del frame.stack[-count:]
    return values


@opcode("BUILD_TUPLE")
def build_tuple(frame: Frame, count: int) -> None:
    """[items] -> [tuple]."""
    frame.stack.append(tuple(take(frame, count)))


@opcode("BUILD_LIST")
def build_list(frame: Frame, count: int) -> None:
    """[items] -> [list]."""
    frame.stack.append(take(frame, count))


@opcode("BUILD_SET")
def build_set(frame: Frame, count: int) -> None:
    """[items] -> [set]."""
    frame.stack.append(set(take(frame, count)))


@opcode("BUILD_MAP")
def build_map(frame: Frame, count: int) -> None:
    """[key, value, ...] -> [dict]."""
    items = take(frame, 2 * count)
    frame.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, count: int) -> None:
    """[values, keys] -> [dict]."""
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, take(frame, count), strict=True)))


@opcode("BUILD_STRING")
def build_string(frame: Frame, count: int) -> None:
    """[strings] -> [joined]."""
    frame.stack.append(frame.machine.operate(texts.concatenate, *take(frame, count)))


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, count: int) -> None:
    """[start, stop, (step)] -> [slice]."""
    frame.stack.append(slice(*take(frame, count)))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(frame: Frame, _argument: object) -> None:
    """[list] -> [tuple]."""
    frame.stack[-1] = tuple(frame.stack[-1])


@opcode("LIST_APPEND")
def list_append(frame: Frame, depth: int) -> None:
    """[list, ..., item] -> [list, ...]."""
    item = frame.stack.pop()
    frame.stack[-depth].append(item)


@opcode("SET_ADD")
def set_add(frame: Frame, depth: int) -> None:
    """[set, ..., item] -> [set, ...]."""
    item = frame.stack.pop()
    frame.stack[-depth].add(item)


@opcode("MAP_ADD")
def map_add(frame: Frame, depth: int) -> None:
    """[dict, ..., key, value] -> [dict, ...]."""
    value, key = frame.stack.pop(), frame.stack.pop()
    frame.stack[-depth][key] = value


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, depth: int) -> None:
    """[list, ..., iterable] -> [list, ...]."""
    iterable = frame.stack.pop()
    kind = type(iterable)
    if type_lookup(kind, "__iter__") is ABSENT and type_lookup(kind, "__getitem__") is ABSENT:
        raise TypeError(f"Value after * must be an iterable, not {type_name(kind)}")
    frame.stack[-depth].extend(gather(frame.machine, list, iterable))


@opcode("SET_UPDATE")
def set_update(frame: Frame, depth: int) -> None:
    """[set, ..., iterable] -> [set, ...]."""
    iterable = frame.stack.pop()
    gather(frame.machine, frame.stack[-depth].update, iterable)


@opcode("DICT_UPDATE")
def dict_update(frame: Frame, depth: int) -> None:
    """[dict, ..., mapping] -> [dict, ...]."""
    mapping = frame.stack.pop()
    merge_mapping(frame.machine, frame.stack[-depth], mapping)


@opcode("DICT_MERGE")
def dict_merge(frame: Frame, depth: int) -> None:
    """[function, ..., dict, ..., mapping] -> [function, ..., dict, ...]; a repeated key is an error."""
    mapping = frame.stack.pop()
    merge_keywords(frame, frame.stack[-depth], mapping, frame.stack[-(2 + depth)])


CONVERSIONS: tuple[Callable[[Any], Any], ...] = (lambda value: value, str, repr, ascii)


@opcode("FORMAT_VALUE")
def format_value(frame: Frame, flags: int) -> None:
    """[value, (specification)] -> [text]."""
    specification = frame.stack.pop() if flags & 4 else ""
    value = frame.stack.pop()
    if flags & 3:
        value = texts.convert(frame.machine, CONVERSIONS[flags & 3], value)
    frame.stack.append(texts.apply_format(frame.machine, value, specification))
