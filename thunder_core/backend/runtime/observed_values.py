"""The numbers and sizes that the programs of a subject were traced with.

Values that differ from call to call become symbolic in later programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import SourceLine

Number = int | float
# After this many consecutive programs with constant sizes, symbolic sizes are no longer tried, unless requested.
MAX_FALLBACKS = 3


@dataclass
class ObservedValues:
    """The numbers and sizes that programs of a subject were traced with, by their paths.

    `first` has the first value of each path. `changing` has the paths at which a different value was found later; paths
    are never removed. `refused_sizes_of_one` has the paths of the sizes with value 1 because of which programs refused
    the latest refused call, and the paths of sizes that a constraint requires to be equal to these. `lines_that_raised`
    are lines where an operation raised an error because of tensor values, and where the user's code may catch the
    error. `eager_lines` are lines at which calls read too many different values of tensors; the functions around these
    lines run in eager PyTorch. `fallbacks` counts the consecutive programs that could not be compiled for symbolic
    sizes, up to `MAX_FALLBACKS`.
    """

    first: dict[str, Number] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    refused_sizes_of_one: frozenset[str] = frozenset()
    fallbacks: int = 0
    lines_that_raised: frozenset[SourceLine] = frozenset()
    eager_lines: frozenset[SourceLine] = frozenset()

    @property
    def has_observations(self) -> bool:
        """Whether any path has a first value or is known to change."""
        return bool(self.first) or bool(self.changing)

    @property
    def sizes_may_be_symbolic(self) -> bool:
        """Whether another attempt to compile for symbolic sizes is worthwhile."""
        return self.fallbacks < MAX_FALLBACKS

    def differs(self, path: str, value: Number) -> bool:
        """Whether a path is known to change, or has a value other than its first recorded value."""
        return path in self.changing or (path in self.first and not same(self.first[path], value))

    def note(self, program: Program) -> None:
        """Record the numbers and sizes of a new program, and whether it fell back to constant sizes."""
        if self.sizes_may_be_symbolic:
            self.fallbacks = self.fallbacks + 1 if program.constant_because else 0
        self.note_values(program.observed)

    def note_values(self, values: Mapping[str, Number]) -> None:
        """Record the numbers and sizes of a call by their paths."""
        for path, value in values.items():
            if self.differs(path, value):
                self.changing.add(path)
            self.first.setdefault(path, value)


def same(left: Number, right: Number) -> bool:
    """Whether a guard treats two numbers as equal: same class and same `repr`, so NaN equals NaN."""
    return type(left) is type(right) and repr(left) == repr(right)


def unambiguous(values: Mapping[str, set[Number]]) -> dict[str, Number]:
    """Return the value of each path that has exactly one value.

    A path has several values if, for example, two closures have the same name.
    """
    return {path: next(iter(candidates)) for path, candidates in values.items() if len(candidates) == 1}
