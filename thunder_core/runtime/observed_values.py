"""The numbers and sizes that calls of one subject had: those that differ from call to call become symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_core.runtime.program import Program

Number = int | float
MOST_FALLBACKS = 3  # in a row: so often is it tried in vain to compile a subject for symbolic sizes


@dataclass
class ObservedValues:
    """The first value of each number and size that programs of a subject were traced with, by their paths.

    Those that had another one later are `changing`, for good. `fallbacks` counts the programs that were compiled for
    the sizes of their calls because they could not be for others, since the last one that was, until there were enough.
    """

    first: dict[str, Number] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    fallbacks: int = 0

    @property
    def any_there(self) -> bool:
        """Whether anything was observed with which a number could be compared."""
        return bool(self.first) or bool(self.changing)

    @property
    def sizes_may_be_symbolic(self) -> bool:
        """Whether another attempt to compile for symbolic sizes is worth its time."""
        return self.fallbacks < MOST_FALLBACKS

    def differs(self, path: str, value: Number) -> bool:
        """Whether a number is not what it was at another call."""
        return path in self.changing or (path in self.first and not same(self.first[path], value))

    def note(self, program: Program) -> None:
        """Take the numbers of a new program into account."""
        if self.sizes_may_be_symbolic:
            self.fallbacks = self.fallbacks + 1 if program.constant_because else 0
        for path, value in program.observed.items():
            if self.differs(path, value):
                self.changing.add(path)
            self.first.setdefault(path, value)


def same(one: Number, other: Number) -> bool:
    """Whether two numbers are alike to a guard: of one class, and written alike, as NaNs are."""
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


def unambiguous(values: Mapping[str, set[Number]]) -> dict[str, Number]:
    """The values of those paths that lead to one value alone: of two closures with one name it is not known which."""
    return {path: next(iter(found)) for path, found in values.items() if len(found) == 1}
