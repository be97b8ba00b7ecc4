"""C iterators, in classes: they ignore items, pass items on, compare items, or call items."""

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
    """An object that is iterated by index."""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


def _iterated_object(iterator: object) -> Iterable[Any]:
    """Return the object that a C iterator iterates over."""
    reduced = iterator.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) else ()


def _unknown_function() -> None:
    """Stand for functions that are not known yet, such as those of an iterator's future items."""


unknown_function: FunctionType = _unknown_function  # type: ignore[assignment]


def unknown_items(_: object) -> Iterable[Any]:
    """Return a placeholder, because the items of a generator or a bridge are known only when it yields them."""
    return (unknown_function,)


def _compared_value(iterator: object) -> Iterable[Any]:
    """Return the value that a C iterator compares with future items."""
    return (unknown_function, *gc.get_referents(iterator))


_EMPTY: dict[Any, Any] = {}
VIEWS = (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items())
_OF_ITERTOOLS: frozenset[type] = frozenset(kind for kind in vars(itertools).values() if isinstance(kind, type))

# Iterators that call Python functions of the object they iterate over, and iterators that pass on items of others.
CALLING: frozenset[type] = frozenset({type(iter(_IteratedByIndex())), reversed})
_PASSING_ITEMS_ON: frozenset[type] = CALLING | _OF_ITERTOOLS | {map, filter, zip, enumerate}
# Iterators over C containers.
_OF_CONTAINERS: frozenset[type] = frozenset(
    {type(iter([])), type(iter(())), type(iter(set())), type(reversed([])), *(type(iter(view)) for view in VIEWS)}
)
# Iterators over items that C code stores or makes, which call nothing.
_CALLING_NOTHING: frozenset[type] = _OF_CONTAINERS | {
    *(type(iter(value)) for value in ("", "\u00e4", b"", bytearray(), range(0), range(1 << 64), memoryview(b""))),
    *(type(reversed(value)) for value in (range(0), range(1 << 64), _EMPTY, *VIEWS)),
    type(iter(deque())), type(reversed(deque())), type(iter(OrderedDict())),
}  # fmt: skip
# Iterators that compare a stored value with received items.
COMPARING: frozenset[type] = frozenset({itertools.groupby, itertools._grouper})  # type: ignore[attr-defined]
# Iterators that test the truth of received items, or compare or add them.
APPLYING: frozenset[type] = COMPARING | {
    filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.accumulate,
}  # fmt: skip
# Iterators whose steps call the machine themselves.
STEPPED: frozenset[type] = (_PASSING_ITEMS_ON - CALLING) | {GeneratorType}
# Iterators whose steps call nothing that must be redirected to the machine.
QUIET_STEPS: frozenset[type] = (STEPPED - APPLYING) | _CALLING_NOTHING

# The objects that C code finds in iterators.
PARTS_OF_ITERATORS: dict[type, Parts] = {
    **dict.fromkeys(_OF_CONTAINERS | CALLING | {map, filter, zip, enumerate}, _iterated_object),
    **dict.fromkeys(_OF_ITERTOOLS, unknown_items),
    **dict.fromkeys(COMPARING, _compared_value),
}


def passes_items_on(kind: type) -> bool:
    """Whether a type is a C iterator that passes on items of other iterators, or calls Python code for them."""
    if kind in _PASSING_ITEMS_ON:
        return True
    return kind not in _CALLING_NOTHING and type_lookup(kind, "__next__") is not ABSENT
