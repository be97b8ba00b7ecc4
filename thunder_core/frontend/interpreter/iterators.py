"""Iterator types that C code implements, classified by the effect of a step.

A step may call Python code of the iterated object, forward an item of another iterator, compare an item with a stored
value, or call nothing.
"""

import gc
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from types import FunctionType, GeneratorType
from typing import Any

from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT

Parts = Callable[[Any], Iterable[Any]]


class _IteratedByIndex:
    """A sequence without `__iter__`, whose iterator calls `__getitem__` with 0, 1, 2 and so on."""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


def _iterated_object(iterator: object) -> Iterable[Any]:
    """Return the constructor arguments in an iterator's `__reduce__`: the iterated objects, and functions of `map`.

    Returns nothing if `__reduce__` returns a string.
    """
    reduced = iterator.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) else ()


def _unknown_function() -> None:
    """Do nothing. This function is a placeholder for functions that are unknown, such as items of later steps."""


unknown_function: FunctionType = _unknown_function  # type: ignore[assignment]


def unknown_items(_: object) -> Iterable[Any]:
    """Return `unknown_function` as a placeholder for items that are known only when an iterator yields them."""
    return (unknown_function,)


def _compared_objects(iterator: object) -> Iterable[Any]:
    """Return the objects that a comparing iterator refers to, and a placeholder for the items that it will compare."""
    return (unknown_function, *gc.get_referents(iterator))


_EMPTY: dict[Any, Any] = {}
VIEWS = (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items())
_ITERTOOLS_ITERATORS: frozenset[type] = frozenset(kind for kind in vars(itertools).values() if isinstance(kind, type))

# Iterators that call Python functions of the object that they iterate over: `__getitem__` and `__len__`.
CALLING_ITERATORS: frozenset[type] = frozenset({type(iter(_IteratedByIndex())), reversed})
# Iterators that call Python functions, or that forward items of other iterators.
_FORWARDING_ITERATORS: frozenset[type] = CALLING_ITERATORS | _ITERTOOLS_ITERATORS | {map, filter, zip, enumerate}
# Iterators over containers that are implemented in C.
_CONTAINER_ITERATORS: frozenset[type] = frozenset(
    {type(iter([])), type(iter(())), type(iter(set())), type(reversed([])), *(type(iter(view)) for view in VIEWS)}
)
# Iterators that call nothing, because C code stores or creates their items.
ITERATORS_IN_C: frozenset[type] = _CONTAINER_ITERATORS | {
    *(type(iter(value)) for value in ("", "\u00e4", b"", bytearray(), range(0), range(1 << 64), memoryview(b""))),
    *(type(reversed(value)) for value in (range(0), range(1 << 64), _EMPTY, *VIEWS)),
    type(iter(deque())), type(reversed(deque())), type(iter(OrderedDict())),
}  # fmt: skip
# Iterators that compare a stored value with received items.
COMPARING_ITERATORS: frozenset[type] = frozenset({itertools.groupby, itertools._grouper})  # type: ignore[attr-defined]
# Iterators that apply an operation to each item: its truth value, a comparison, or an addition.
APPLYING_ITERATORS: frozenset[type] = COMPARING_ITERATORS | {
    filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.accumulate,
}  # fmt: skip
# Iterators that call the machine by themselves: they iterate over bridges, or they drive an interpreted frame.
STEPPED_ITERATORS: frozenset[type] = (_FORWARDING_ITERATORS - CALLING_ITERATORS) | {GeneratorType}
# Iterators whose steps call nothing that must be redirected to the machine.
QUIET_ITERATORS: frozenset[type] = (STEPPED_ITERATORS - APPLYING_ITERATORS) | ITERATORS_IN_C

# For each type of iterator, a function that returns the objects that the steps of the iterator can call or compare.
PARTS_OF_ITERATORS: dict[type, Parts] = {
    **dict.fromkeys(_CONTAINER_ITERATORS | CALLING_ITERATORS | {map, filter, zip, enumerate}, _iterated_object),
    **dict.fromkeys(_ITERTOOLS_ITERATORS, unknown_items),
    **dict.fromkeys(COMPARING_ITERATORS, _compared_objects),
}


def may_call_or_forward(kind: type) -> bool:
    """Whether a step of an iterator of this type may run Python code, or forward an item of another iterator.

    An iterator type that is in none of the sets above may run Python code.
    """
    if kind in _FORWARDING_ITERATORS:
        return True
    return kind not in ITERATORS_IN_C and type_lookup(kind, "__next__") is not ABSENT
