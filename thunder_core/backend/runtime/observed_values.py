"""The numbers and sizes that the programs of a compiled function were traced with, and the tensor values they read.

Numbers and sizes that differ between calls become symbolic in later programs. If a line reads different tensor values
in many consecutive programs, the function around the line is called in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_core.backend.runtime.attempt_log import AttemptLog
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import DataDependent, SourceLine
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.objects import DATA_DIGEST_PREFIX, expect_value

Number = int | float
# After this many consecutive programs with constant sizes, symbolic sizes are no longer tried, unless requested.
MAX_FALLBACKS = 3
# If a line reads so many different values without a cache hit in between, the function around the line is left to eager
# PyTorch. `MAX_NEW_DATA` is for digests of all data of a tensor, which rarely repeat.
MAX_NEW_DATA = 4
MAX_NEW_VALUES = 32

Values = tuple[str, ...]  # the values that one program reads at a line, in order


@dataclass
class ObservedValues:
    """The numbers and sizes that programs of a subject were traced with, by their paths.

    `first` has the first value of each path. `changing` has the paths at which a different value was found later; paths
    are never removed. `refused_sizes_of_one` is about the latest call that programs refused: it has the paths of the
    sizes that were refused because they are 1, and of sizes that a constraint requires to be equal to them.
    `lines_that_raised` are lines where an operation raised an error because of tensor values, and where the user's code
    may catch the error. `eager_lines` are lines at which calls read too many different values of tensors; the functions
    around these lines run in eager PyTorch. `fallbacks` counts the consecutive programs that could not be compiled for
    symbolic sizes, up to `MAX_FALLBACKS`. `log` has the attempts to trace the subject.
    """

    first: dict[str, Number] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    refused_sizes_of_one: frozenset[str] = frozenset()
    fallbacks: int = 0
    lines_that_raised: frozenset[SourceLine] = frozenset()
    eager_lines: frozenset[SourceLine] = frozenset()
    log: AttemptLog = field(default_factory=AttemptLog, compare=False)

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
    """Whether a guard treats two numbers as equal: they have the same class and `repr`, so NaN equals NaN."""
    return type(left) is type(right) and repr(left) == repr(right)


def unambiguous(values: Mapping[str, set[Number]]) -> dict[str, Number]:
    """Return the value of each path that has exactly one value.

    A path has several values if, for example, two closures have the same name.
    """
    return {path: next(iter(candidates)) for path, candidates in values.items() if len(candidates) == 1}


@dataclass
class NewValues:
    """The tensor values that the programs since the latest cache hit read, by line.

    A cache hit shows that values repeat, so earlier programs do not count. `refusals.too_many_values` alone does not
    suffice: it counts the programs that refuse one call because of tensor values, but programs for other shapes refuse
    the call before they read values. A function whose shapes change would be traced at each call.
    """

    by_line: dict[SourceLine, dict[Values, None]] = field(default_factory=dict)
    hits: int = 0

    def note(self, program: Program, hits: int) -> None:
        """Record the tensor values of a new program; `hits` is the number of cache hits so far."""
        self._forget_before_hit(hits)
        for line, values in expected_values(program).items():
            self.by_line.setdefault(line, {})[values] = None

    def too_many(self, hits: int) -> DataDependent | None:
        """Return the error if too many consecutive programs read different values at a line; None otherwise."""
        self._forget_before_hit(hits)
        for line, values in self.by_line.items():
            if len(values) >= limit_of(values):
                what = f"programs were traced for {len(values)} different values at this line, and none was used again"
                return values_error(what, line)
        return None

    def _forget_before_hit(self, hits: int) -> None:
        """Forget the values of all programs if there was a cache hit since the last program."""
        if hits != self.hits:
            self.by_line.clear()
            self.hits = hits


def values_error(what: str, line: SourceLine | None) -> DataDependent:
    """Return the error for too many values of tensors at a line."""
    return DataDependent(
        what,
        fix="branch on a comparison rather than on the value, use torch.where, keep the line out of the "
        'compiled program, or trace for each value with data_dependent="retrace"',
        where=line,
    )


def expected_values(program: Program) -> dict[SourceLine, Values]:
    """Return the tensor values that a program expects at run time, as strings, by the line that reads them."""
    values: dict[SourceLine, Values] = {}
    for bsym in program.last("computation").bound_symbols:
        if bsym.symbol.target is expect_value and bsym.source is not None and is_constant(bsym.args[1]):
            values[bsym.source] = (*values.get(bsym.source, ()), repr(bsym.args[1]))
    return values


def limit_of(values: dict[Values, None]) -> int:
    """Return the number of different values at which the function around their line is left to eager PyTorch."""
    are_digests = all(text.strip("'").startswith(DATA_DIGEST_PREFIX) for texts in values for text in texts)
    return MAX_NEW_DATA if are_digests else MAX_NEW_VALUES
