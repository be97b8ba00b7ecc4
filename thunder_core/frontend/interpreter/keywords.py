"""Merging of unpacked arguments and mappings (`f(*arguments, **keywords)`, `{**mapping}`), with CPython's errors."""

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from thunder_core.frontend.interpreter import bridges, operators
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.frame import Frame, Machine
from thunder_core.frontend.interpreter.lookup import type_lookup, type_name
from thunder_core.tracing.library.changes.class_entries import ABSENT

# Since 3.12, CPython replaces every KeyError with one argument by the TypeError for a repeated keyword.
_REPLACES_EVERY_KEY_ERROR = sys.version_info >= (3, 12)


def function_text(function: object) -> str:
    """Return the text that CPython's errors about unpacked arguments use for a callable."""
    qualname = callable_attribute(function, "__qualname__")
    if qualname is None:
        return str(function)
    module = callable_attribute(function, "__module__")
    return f"{qualname}()" if module in (None, "builtins") else f"{module}.{qualname}()"


def merge_keywords(frame: Frame, target: dict[Any, Any], mapping: Any, function: Any) -> None:
    """Add the items of a mapping to the keywords of a call. Raise TypeError for a repeated key."""
    machine = frame.machine
    if _is_read_by_c(mapping):
        machine.announce_iteration(mapping)
        for key in mapping if target else ():
            if _has_keyword(machine, target, key):
                _refuse_repeated(function, key)
        target.update(_stored_items(mapping))
        return
    try:
        for key in _collect_keys(machine, mapping):
            if _has_keyword(machine, target, key):
                _refuse_repeated(function, key)
            target[key] = operators.get_item(machine, mapping, key)
        return
    except AttributeError:
        text = f"{function_text(function)} argument after ** must be a mapping, not {type_name(type(mapping))}"
    except KeyError as error:
        if not _REPLACES_EVERY_KEY_ERROR or len(error.args) != 1:
            raise
        text = _repeated_keyword_message(function, error.args[0])
    raise TypeError(text)


def merge_mapping(machine: Machine, target: dict[Any, Any], mapping: object) -> None:
    """Add the items of a mapping to the dictionary that a display `{**mapping}` builds."""
    if _is_read_by_c(mapping):
        machine.announce_iteration(mapping)
        machine.call_unreported(target.update, (_stored_items(mapping),), {})
        return
    try:
        for key in _collect_keys(machine, mapping):
            machine.call_unreported(target.__setitem__, (key, operators.get_item(machine, mapping, key)), {})
        return
    except AttributeError:
        pass
    raise TypeError(f"'{type_name(type(mapping))}' object is not a mapping")


def _is_read_by_c(mapping: object) -> bool:
    """Whether a mapping is a dictionary whose stored items CPython reads without calling methods of its class."""
    return issubclass(type(mapping), dict) and type_lookup(type(mapping), "__iter__") is dict.__iter__


def _stored_items(mapping: Any) -> Any:
    """Return the items of a mapping, as CPython's opcode does, without the attribute `keys` of a subclass of dict."""
    return mapping if type(mapping) is dict else dict.items(mapping)


def _collect_keys(machine: Machine, mapping: object) -> Iterator[Any]:
    """Yield the keys of a mapping, after collecting all of them."""
    keys = machine.invoke(machine.load_attr(mapping, "keys"), (), {})
    if type_lookup(type(keys), "__iter__") is ABSENT and type_lookup(type(keys), "__getitem__") is ABSENT:
        raise TypeError(f"{type_name(type(mapping))}.keys() returned a non-iterable (type {type_name(type(keys))})")
    yield from bridges.gather(machine, list, keys)


def _has_keyword(machine: Machine, keywords: dict[Any, Any], key: object) -> bool:
    """Whether a keyword is already present. A lookup of a key that is not a plain string may run Python code."""
    return key in keywords if type(key) is str else machine.call_unreported(keywords.__contains__, (key,), {})


def _repeated_keyword_message(function: object, key: object) -> str:
    """Return the error message for a repeated keyword."""
    return f"{function_text(function)} got multiple values for keyword argument '{key}'"


def _refuse_repeated(function: object, key: object) -> NoReturn:
    """Raise TypeError for a repeated keyword."""
    raise TypeError(_repeated_keyword_message(function, key))


def unpack_arguments(machine: Machine, iterable: Any, function: Any) -> tuple[Any, ...]:
    """Return a tuple of the values that are unpacked with `*`."""
    kind = type(iterable)
    if kind is tuple:
        machine.announce_iteration(iterable)
        return iterable  # type: ignore[no-any-return]
    if type_lookup(kind, "__iter__") is ABSENT and type_lookup(kind, "__getitem__") is ABSENT:
        raise TypeError(f"{function_text(function)} argument after * must be an iterable, not {type_name(kind)}")
    return bridges.gather(machine, tuple, iterable)  # type: ignore[no-any-return]
