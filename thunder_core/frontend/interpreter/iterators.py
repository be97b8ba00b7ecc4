"""The iterators of C by what they do with the items that they give: nothing, hand them on, compare them, call them."""

import gc
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from types import FunctionType, GeneratorType
from typing import Any

from thunder_core.frontend.interpreter.lookup import ABSENT, type_lookup

Parts = Callable[[Any], Iterable[Any]]


class _Sequence:
    """An object that is iterated by its items."""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


def _behind(iterator: Any) -> Iterable[Any]:
    """The object that an iterator of C goes through."""
    reduced = iterator.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) else ()


def _nothing() -> None:
    """Stand for functions that are not known yet: those of what an iterator will give."""


nothing: FunctionType = _nothing  # type: ignore[assignment]


def later(_: Any) -> Iterable[Any]:
    """Wait until a generator or a bridge gives something: what it leads to is known only then."""
    return (nothing,)


def _held(iterator: Any) -> Iterable[Any]:
    """The value that an iterator of C compares with what it will be given."""
    return (nothing, *gc.get_referents(iterator))


_EMPTY: dict[Any, Any] = {}
VIEWS = (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items())
_OF_ITERTOOLS: frozenset[type] = frozenset(kind for kind in vars(itertools).values() if isinstance(kind, type))

# Iterators that call Python functions of what they go through, and those that hand on what others give.
CALLING: frozenset[type] = frozenset({type(iter(_Sequence())), reversed})
_HANDING_ON: frozenset[type] = CALLING | _OF_ITERTOOLS | {map, filter, zip, enumerate}
# Iterators over containers of C.
_OF_CONTAINERS: frozenset[type] = frozenset(
    {type(iter([])), type(iter(())), type(iter(set())), type(reversed([])), *(type(iter(view)) for view in VIEWS)}
)
# Iterators over what C code holds or makes, which call nothing.
_QUIET: frozenset[type] = _OF_CONTAINERS | {
    *(type(iter(value)) for value in ("", "\u00e4", b"", bytearray(), range(0), range(1 << 64), memoryview(b""))),
    *(type(reversed(value)) for value in (range(0), range(1 << 64), _EMPTY, *VIEWS)),
    type(iter(deque())), type(reversed(deque())), type(iter(OrderedDict())),
}  # fmt: skip
# Iterators that compare what they hold with what they are given.
COMPARING: frozenset[type] = frozenset({itertools.groupby, itertools._grouper})  # type: ignore[attr-defined]
# Iterators that ask for the truth of what they are given, compare or add it.
APPLYING: frozenset[type] = COMPARING | {
    filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.accumulate,
}  # fmt: skip
# Iterators whose steps lead to the machine by themselves.
STEPPED: frozenset[type] = (_HANDING_ON - CALLING) | {GeneratorType}
# Iterators whose steps call nothing that would have to be led back.
QUIET_STEPS: frozenset[type] = (STEPPED - APPLYING) | _QUIET

# What C code finds in iterators.
PARTS_OF_ITERATORS: dict[type, Parts] = {
    **dict.fromkeys(_OF_CONTAINERS | CALLING | {map, filter, zip, enumerate}, _behind),
    **dict.fromkeys(_OF_ITERTOOLS, later),
    **dict.fromkeys(COMPARING, _held),
}


def is_handing_on(kind: type) -> bool:
    """Whether a type is one of C's iterators that hand on what other iterators give, or call Python code for it."""
    if kind in _HANDING_ON:
        return True
    return kind not in _QUIET and type_lookup(kind, "__next__") is not ABSENT
