"""Tensor values that are new in each call: the limit of consecutive calls that are traced for other values of a line.

`too_many_values` counts the programs that refuse one call because of tensor values. A program for other shapes refuses
the call earlier, so that calls whose shapes change, too, would be traced for each shape and each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import DataDependent, SourceLine
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.objects import DATA_DIGEST_PREFIX, expect_value

# Limits of the number of consecutive traced calls with different values of a line: for digests of all data of a tensor,
# which rarely repeat, and for other values.
MAX_NEW_DATA = 4
MAX_NEW_VALUES = 12
CHECK_OF_VALUE = f"{expect_value.__module__}.{expect_value.__name__}"

Values = tuple[str, ...]  # the values that one program reads at a line, in order


@dataclass
class NewValues:
    """The tensor values that the programs of the latest calls read, by line.

    Only the programs since the latest hit count: a call that finds its program shows that values repeat.
    """

    by_line: dict[SourceLine, dict[Values, None]] = field(default_factory=dict)
    hits: int = 0

    def note(self, program: Program, hits: int) -> None:
        """Record the tensor values of a new program, which was compiled after this number of `hits`."""
        self._forget_before_hit(hits)
        for line, values in expected_values(program).items():
            self.by_line.setdefault(line, {})[values] = None

    def too_many(self, hits: int) -> DataDependent | None:
        """Return the error if too many consecutive programs read other values at a line; None otherwise."""
        self._forget_before_hit(hits)
        for line, values in self.by_line.items():
            if len(values) >= limit_of(values):
                return DataDependent(
                    f"the last {len(values)} programs were traced each for other values of a tensor at this line",
                    fix="branch on a comparison rather than on the value, use torch.where, keep the line out of the "
                    'compiled program, or trace for each value with data_dependent="retrace"',
                    where=line,
                )
        return None

    def _forget_before_hit(self, hits: int) -> None:
        if hits != self.hits:
            self.by_line.clear()
            self.hits = hits


def expected_values(program: Program) -> dict[SourceLine, Values]:
    """Return the tensor values that a program expects at run time, as texts, by the line that reads them."""
    values: dict[SourceLine, Values] = {}
    for line, value in checked_values(program):
        values[line] = (*values.get(line, ()), value)
    return values


def checked_values(program: Program) -> Iterator[tuple[SourceLine, str]]:
    """Yield the line and the expected value of each check of a tensor value, in the order of the program."""
    for bsym in program.last("computation").bound_symbols:
        if bsym.symbol.name == CHECK_OF_VALUE and bsym.source is not None and is_constant(bsym.args[1]):
            yield bsym.source, repr(bsym.args[1])


def limit_of(values: dict[Values, None]) -> int:
    """Return the maximum number of consecutive programs with these different values."""
    is_data = all(value.strip("'").startswith(DATA_DIGEST_PREFIX) for texts in values for value in texts)
    return MAX_NEW_DATA if is_data else MAX_NEW_VALUES
