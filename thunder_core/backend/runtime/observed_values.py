"""The numbers and sizes that the programs of a subject were traced with, and the tensor values that they read.

Numbers and sizes that differ from call to call become symbolic in later programs. The function around a line that reads
other tensor values in many consecutive programs is called in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import DataDependent, SourceLine
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.objects import DATA_DIGEST_PREFIX, expect_value

Number = int | float
# After this many consecutive programs with constant sizes, symbolic sizes are no longer tried, unless requested.
MAX_FALLBACKS = 3
# The numbers of different values of a line, without a cache hit in between, at which the function around the line is
# left to eager PyTorch: for digests of all data of a tensor, which rarely repeat, and for other values.
MAX_NEW_DATA = 4
MAX_NEW_VALUES = 32

Values = tuple[str, ...]  # the values that one program reads at a line, in order


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


@dataclass
class NewValues:
    """The tensor values that the programs of the latest calls read, by line.

    `refusals.too_many_values` counts the programs that refuse one call because of tensor values. It misses programs for
    other shapes, which refuse the call earlier, so that a function whose shapes change would be traced at each call.
    Only the programs since the latest hit count: a call that finds its program shows that values repeat.
    """

    by_line: dict[SourceLine, dict[Values, None]] = field(default_factory=dict)
    hits: int = 0

    def note(self, program: Program, hits: int) -> None:
        """Record the tensor values of a new program; `hits` is the number of cache hits so far."""
        self._forget_before_hit(hits)
        for line, values in expected_values(program).items():
            self.by_line.setdefault(line, {})[values] = None

    def too_many(self, hits: int) -> DataDependent | None:
        """Return the error if too many consecutive programs read other values at a line; None otherwise."""
        self._forget_before_hit(hits)
        for line, values in self.by_line.items():
            if len(values) >= limit_of(values):
                what = f"programs were traced for {len(values)} different values at this line, and none was used again"
                return values_error(what, line)
        return None

    def _forget_before_hit(self, hits: int) -> None:
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
    """Return the constant tensor values that a program expects at run time, as texts, by the line that reads them."""
    values: dict[SourceLine, Values] = {}
    for bsym in program.last("computation").bound_symbols:
        if bsym.symbol.target is expect_value and bsym.source is not None and is_constant(bsym.args[1]):
            values[bsym.source] = (*values.get(bsym.source, ()), repr(bsym.args[1]))
    return values


def limit_of(values: dict[Values, None]) -> int:
    """Return the number of different values at which the function around their line is left to eager PyTorch."""
    is_data = all(value.strip("'").startswith(DATA_DIGEST_PREFIX) for texts in values for value in texts)
    return MAX_NEW_DATA if is_data else MAX_NEW_VALUES
