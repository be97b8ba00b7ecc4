"""Reads of functions of C beside the items of containers: guarded where they are known, and else a sharp edge."""

from __future__ import annotations

import _pickle
import decimal
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

from thunder_core.acquire.attributes import runs_python
from thunder_core.acquire.containers import UNBOUND
from thunder_core.acquire.guards import is_constant
from thunder_core.acquire.native_kinds import HOLDING, Answer, answer_of, name_of, only_asks
from thunder_core.acquire.whole_reads import WholeReads
from thunder_core.interpreter.lookup import type_lookup
from thunder_core.runtime.library.states import decimal_settings

# Methods of C that give all that an object holds, and functions that go on with what that holds.
WHOLE = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__", "__sizeof__"})
DECIMAL_SETTINGS = "decimal_settings()"
CONTEXTUAL = (decimal.Decimal, decimal.getcontext, decimal.localcontext)
DEEP = (_pickle.dumps, _pickle.dump)
LISTING = "__dir__"
# Functions that look into what they are given, as operators do.
LOOKING = (
    len,
    iter,
    next,
    list,
    tuple,
    set,
    dict,
    sum,
    min,
    max,
    any,
    all,
    sorted,
    repr,
    str,
    bytes,
    hash,
    enumerate,
    zip,
)
# Operators that ask an object for nothing where its class leaves them to `object`.
IDENTITY = {operator.eq: "__eq__", operator.ne: "__ne__", operator.is_: "__eq__", operator.is_not: "__ne__"}


class NativeReads:
    """Guards what functions and operators of C read; `note_edge` is told of what nothing tells."""

    def __init__(
        self,
        outside: WholeReads,
        is_users_class: Callable[[type], bool],
        note_edge: Callable[..., None],
        asked: dict[str, object],
    ) -> None:
        self._outside = outside
        self._is_users_class = is_users_class
        self._note_edge = note_edge
        self._asked = asked
        self._decimal_settings = decimal_settings()

    def before(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function of C is about to be called."""
        owner, name = called_on(function, args)
        self._decimals((function, owner, *args))
        if function is dir and len(args) == 1:
            self._outside.names(args[0], self._is_users_class)
        elif is_any(function, DEEP) or (name == "dump" and isinstance(owner, _pickle.Pickler)):
            self._outside.expand_deeply((args, kwargs))
        elif is_any(function, LOOKING):
            self.operation(function, args)
        elif owner is not None:
            self._method(function, owner, name)

    def _decimals(self, values: Iterable[Any]) -> None:
        """Guard by which settings decimal numbers are computed with, where C code computes with some."""
        if any(issubclass(type(value), decimal.Decimal) or is_any(value, CONTEXTUAL) for value in values):
            self._asked[DECIMAL_SETTINGS] = self._decimal_settings

    def _method(self, function: Any, owner: Any, name: str) -> None:
        if name in WHOLE:
            for held in (owner, *self._outside.attributes(owner)):
                self._outside.expand(held)
        elif name == LISTING:
            self._outside.names(owner, self._is_users_class)
        elif not is_telling(owner, name) and self._outside.path_of(owner) is not None and not runs_python(function):
            path = self._outside.path_of(owner)
            self._note_edge(
                f"code in C that nothing tells the reads of: {name_of(type(owner))}.{name} of {path}", loud=True
            )

    def after(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """A function of C has returned: what only asks is asked again at each call."""
        owner, name = called_on(function, args)
        if owner is None or kwargs or answer_of(type(owner)) is not Answer.ASKED or not only_asks(type(owner), name):
            return
        given = args if getattr(function, "__self__", None) is owner else args[1:]
        if all(map(is_constant, given)):
            self._outside.called(owner, name, given, value)

    def operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """An operator is about to be applied to objects, of which C code may decide."""
        self._decimals(operands)
        for operand in operands:
            kind = type(operand)
            if answer_of(kind) is not Answer.OPAQUE or self._outside.path_of(operand) is None:
                continue
            special = IDENTITY.get(function)
            if special is None or type_lookup(kind, special) is not getattr(object, special):
                path = self._outside.path_of(operand)
                self._note_edge(f"code in C that nothing tells the reads of: {name_of(kind)} at {path}", loud=True)


def called_on(function: Any, args: tuple[Any, ...]) -> tuple[Any, str]:
    """The object that a method of C is called on, and its name; None for a function of a module, or of a class."""
    name = getattr(function, "__name__", "")
    owner = args[0] if type(function) in UNBOUND and args else getattr(function, "__self__", None)
    return (None if isinstance(owner, types.ModuleType | type) else owner), name


def is_telling(owner: Any, name: str) -> bool:
    """Whether it is known what a method of C reads of an object, or that it may be asked again."""
    answer = answer_of(type(owner))
    if answer is Answer.ASKED:
        return name in HOLDING or only_asks(type(owner), name)
    return answer is not Answer.OPAQUE


def is_any(function: Any, functions: tuple[Any, ...]) -> bool:
    """Whether a function is one of these; it may be an object without a hash."""
    return any(function is one for one in functions)
