"""Binding of a call's arguments to the local slots of a frame."""

import inspect
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.program import DecodedCode


def bind(function: FunctionType, program: DecodedCode, arguments: Sequence[Any], keywords: dict[str, Any]) -> list[Any]:
    """Return the local slots of a call of `function`, with the values of its parameters.

    Raises CPython's TypeError if the arguments do not match the parameters.
    """
    code = function.__code__
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    named = positional + keyword_only
    slots = [UNBOUND] * len(program.names)
    slots[: min(len(arguments), positional)] = arguments[:positional]
    surplus = tuple(arguments[positional:])
    extra: dict[str, Any] = {}
    fits = True
    for name, value in keywords.items():
        slot = _slot_of(program.names, name, code.co_posonlyargcount, named)
        if slot is None:
            extra[name] = value
        elif slots[slot] is UNBOUND:
            slots[slot] = value
        else:
            fits = False
    _fill_defaults(function, slots, positional, named)
    following = named
    if code.co_flags & inspect.CO_VARARGS:
        slots[following] = surplus
        following += 1
    elif surplus:
        fits = False
    if code.co_flags & inspect.CO_VARKEYWORDS:
        slots[following] = extra
    elif extra:
        fits = False
    if not fits or any(slots[slot] is UNBOUND for slot in range(named)):
        _refuse(function, arguments, keywords)
    return slots


def _slot_of(names: tuple[str, ...], name: str, first: int, end: int) -> int | None:
    """Return the slot of the parameter that a keyword names, or None."""
    try:
        return names.index(name, first, end)
    except ValueError:
        return None


def _fill_defaults(function: FunctionType, slots: list[Any], positional: int, named: int) -> None:
    """Fill in the defaults of parameters without an argument."""
    defaults = function.__defaults__
    if defaults:
        first = positional - len(defaults)
        for slot in range(max(first, 0), positional):
            if slots[slot] is UNBOUND:
                slots[slot] = defaults[slot - first]
    if named > positional:
        keyword_defaults = function.__kwdefaults__ or {}
        for slot in range(positional, named):
            if slots[slot] is UNBOUND:
                name = function.__code__.co_varnames[slot]
                slots[slot] = keyword_defaults.get(name, UNBOUND)


def _refuse(function: FunctionType, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Call the function natively, so that CPython raises its TypeError before the first instruction runs."""
    function(*arguments, **keywords)
    raise SystemError(f"the interpreter could not bind the arguments of {function.__qualname__}")
