"""Lists, tuples and ranges of numbers whose length is symbolic, such as `list(range(n))` and `[0] * n`.

Such a sequence consists of progressions: numbers with a constant difference. Lengths, items, slices and sums of
sequences are computed from the progressions. Any other use reads the items, so that the length is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

from thunder_core.tracing.capture.symbolic.numbers import STRUCTURE, SymbolicNumber, concrete

NUMBERS = (int, float, bool)


class Progression(NamedTuple):
    """The numbers `start`, `start + step`, ..., of which there are `count`."""

    start: Any
    step: int
    count: Any

    def item(self, index: Any) -> Any:
        """Return the number at an index."""
        return self.start if not self.step else self.start + self.step * index

    def part(self, first: object, count: object, stride: int = 1) -> Progression:
        """Return every `stride`-th number from an index on, `count` of them."""
        return Progression(self.item(first), self.step * stride, count)

    @property
    def is_constant(self) -> bool:
        """Whether the numbers do not depend on symbols."""
        return not isinstance(self.start, SymbolicNumber) and not isinstance(self.count, SymbolicNumber)

    def items(self) -> list[Any]:
        """Return the numbers; their count is guarded."""
        count = concrete(self.count)
        return [self.start] * count if not self.step else [self.item(index) for index in range(count)]


Progressions = tuple[Progression, ...]


class SymbolicSequence:
    """A list, tuple or range of numbers in `progressions`; `real` returns the sequence with its items."""

    kind: ClassVar[type[Any]]

    def __init__(self, progressions: Iterable[Progression]) -> None:
        self.progressions: Progressions = tuple(progressions)
        self._real: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that the program and C code see in `__class__`."""
        return self.kind

    @property
    def is_read(self) -> bool:
        """Whether the items have been read, so that the sequence is an ordinary one."""
        return self._real is not None

    def real(self) -> Any:
        """Return an ordinary sequence with the items; the length is guarded."""
        if self._real is None:
            self._real = self._read()
        return self._real

    def _read(self) -> Any:
        return self.kind(item for progression in self.progressions for item in progression.items())

    def length(self) -> Any:
        """Return the number of items."""
        return len(self._real) if self.is_read else sum(progression.count for progression in self.progressions)

    def __getitem__(self, key: object) -> Any:
        item = None if self.is_read else item_or_slice(self, key)
        return self.real()[key] if item is None else item

    def __bool__(self) -> bool:
        return bool(self.length() > 0)


class SymbolicList(SymbolicSequence):
    """A list of numbers with a symbolic length."""

    kind = list


class SymbolicTuple(SymbolicSequence):
    """A tuple of numbers with a symbolic length."""

    kind = tuple


class SymbolicRange(SymbolicSequence):
    """A range with a symbolic length, which is one progression."""

    kind = range

    def _read(self) -> range:
        start, step, count = concrete(tuple(self.progressions[0]))
        return range(start, start + step * count, step)


SEQUENCES: dict[type, type[SymbolicSequence]] = {list: SymbolicList, tuple: SymbolicTuple, range: SymbolicRange}
SEQUENCE_CLASSES = frozenset(SEQUENCES.values())


def plain_sequence(value: Any) -> Any:
    """Return a sequence of symbolic length with its items; other values as they are."""
    return value.real() if type(value) in SEQUENCE_CLASSES else value


def _reading_method(name: str) -> Callable[..., Any]:
    """Return a method that reads the items."""

    def method(self: SymbolicSequence, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.real(), name)(*map(plain_sequence, args), **kwargs)

    return method


def _reading_property(name: str) -> property:
    return property(lambda self: getattr(self.real(), name))


for _class in SEQUENCE_CLASSES:
    for _name in vars(_class.kind).keys() - STRUCTURE - vars(SymbolicSequence).keys() | {"__eq__", "__ne__"}:
        _is_method = callable(getattr(_class.kind, _name))
        setattr(_class, _name, _reading_method(_name) if _is_method else _reading_property(_name))
    if _class.kind is list:
        _class.__hash__ = None  # type: ignore[assignment]


# ---- progressions ----------------------------------------------------------------------------------------------------


def range_of(start: Any, stop: Any, step: int) -> SymbolicRange | None:
    """Return a range whose length is symbolic; None if the range is empty. A constraint keeps it empty or nonempty."""
    count = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    return SymbolicRange([Progression(start, step, count)]) if bool(count > 0) else None


def progressions_of(value: Any) -> Progressions | None:
    """Return the progressions of a sequence, or of a list or tuple of numbers; None for other values."""
    if type(value) in SEQUENCE_CLASSES:
        return None if value.is_read else tuple(value.progressions)
    if type(value) not in (list, tuple) or not all(map(is_number, value)):
        return None
    return tuple(Progression(item, 0, 1) for item in value)


def is_number(value: object) -> bool:
    """Whether a value is a number of Python, which may be a symbolic integer."""
    return type(value) in NUMBERS or (isinstance(value, SymbolicNumber) and value.size is not None)


def sequence_of(kind: type, progressions: Iterable[Progression]) -> Any:
    """Return a sequence with these progressions: an ordinary one if its items do not depend on symbols."""
    progressions = tuple(progression for progression in progressions if progression.count)
    if all(progression.is_constant for progression in progressions) and kind is not range:
        return kind(item for progression in progressions for item in progression.items())
    return SEQUENCES[kind](progressions)


def concatenate_sequences(left: object, right: object) -> Any:
    """Return the concatenation of two lists or two tuples of numbers; None for other values."""
    kinds = {getattr(type(value), "kind", type(value)) for value in (left, right)}
    kind = next(iter(kinds))
    progressions = [progressions_of(left), progressions_of(right)]
    if len(kinds) > 1 or kind is range or None in progressions:
        return None
    return sequence_of(kind, [progression for part in progressions if part is not None for progression in part])


def repeated_sequence(items: Any, count: Any) -> Any:
    """Return a list or tuple of one number, repeated a symbolic number of times; None for other values."""
    if type(items) not in (list, tuple) or len(items) != 1 or not is_number(items[0]) or not bool(count > 0):
        return None
    return sequence_of(type(items), [Progression(items[0], 0, count)])


# ---- items and slices ----------------------------------------------------------------------------------------------


def item_or_slice(sequence: SymbolicSequence, key: object) -> Any:
    """Return an item or a slice of a sequence, with decisions about its length; None if the items must be read."""
    if type(key) is not slice:
        return item_at(sequence, key) if is_index(key) else None
    if not all(part is None or is_index(part) for part in (key.start, key.stop, key.step)):
        return None
    step = 1 if key.step is None else key.step
    if type(step) is not int or not step:
        return None
    progressions = sequence.progressions
    if step < 0:
        if key.start is not None or key.stop is not None:
            return None
        progressions = tuple(
            progression.part(progression.count - 1, progression.count, -1) for progression in reversed(progressions)
        )
    else:
        progressions = items_between(progressions, sequence.length(), key.start, key.stop)
    strided = every_nth(progressions, abs(step))
    return None if strided is None or (not strided and sequence.kind is range) else sequence_of(sequence.kind, strided)


def is_index(value: object) -> bool:
    """Whether a value is an index of Python, which may be symbolic."""
    return type(value) is int or (is_number(value) and type(value) not in NUMBERS)


def item_at(sequence: SymbolicSequence, index: Any) -> Any:
    """Return the item at an index; None if there is none."""
    if bool(index < 0):
        index = sequence.length() + index
    for progression in sequence.progressions if bool(index >= 0) else ():
        if bool(index < progression.count):
            return progression.item(index)
        index = index - progression.count
    return None


def items_between(progressions: Progressions, length: Any, start: Any, stop: Any) -> Progressions:
    """Return the progressions of the items from one index to another."""
    first, last = (bound if bound is None or bool(bound >= 0) else length + bound for bound in (start, stop))
    return without_first(progressions if last is None else first_of(progressions, last), 0 if first is None else first)


def first_of(progressions: Progressions, count: Any) -> Progressions:
    """Return the progressions of the first `count` items."""
    parts: list[Progression] = []
    for progression in progressions:
        if bool(count <= 0):
            break
        if bool(count <= progression.count):
            return (*parts, progression.part(0, count))
        parts.append(progression)
        count = count - progression.count
    return tuple(parts)


def without_first(progressions: Progressions, count: Any) -> Progressions:
    """Return the progressions of the items after the first `count` items."""
    for index, progression in enumerate(progressions):
        if bool(count <= 0):
            return progressions[index:]
        if bool(count < progression.count):
            return (progression.part(count, progression.count - count), *progressions[index + 1 :])
        count = count - progression.count
    return ()


def every_nth(progressions: Progressions, stride: int) -> Progressions | None:
    """Return the progressions of every `stride`-th item; None if their positions depend on a symbolic length."""
    parts: list[Progression] = []
    offset = 0
    for index, progression in enumerate(progressions):
        is_last = index == len(progressions) - 1
        if isinstance(progression.count, SymbolicNumber) and not is_last and stride > 1:
            return None
        count = (progression.count - offset + stride - 1) // stride
        if bool(count > 0):
            parts.append(progression.part(offset, count, stride))
        offset = 0 if is_last or stride == 1 else (offset - progression.count) % stride
    return tuple(parts)
