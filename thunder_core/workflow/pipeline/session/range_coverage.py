"""Cover ranges of sizes: trace programs until every probed size in the ranges has a program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import RangeNotServed, RecompileWarning, SpecializationWarning
from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.frontend.acquire.codegen.constraints import GIVEN_RANGE
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.session.dynamic import Ranges, points_of

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.session.session import Session

MAX_PROGRAMS = 4  # a model that needs more programs specializes too much for its range
MAX_PROBES = 256  # the most combinations of sizes that are probed


@contextmanager
def suppress_shortfalls() -> Iterator[None]:
    """Suppress warnings that a program covers only a part of a range, because the other programs are traced next."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)
        warnings.simplefilter("ignore", RecompileWarning)
        yield


@dataclass(frozen=True)
class RangeCoverage:
    """The programs of a session that must support all sizes of some ranges."""

    session: Session
    ranges: Ranges
    traced: InputSize

    @property
    def programs(self) -> list[Program]:
        """The programs in the order in which they were traced."""
        return list(specializations_of(self.session.compiled).programs)[::-1]

    def complete(self) -> str:
        """Trace a program for each probed size that no program accepts; return the probed sizes in words.

        The probed sizes are the points of the ranges, and sizes near the numbers in the programs' constraints. Raises
        `RangeNotServed` if more than `MAX_PROGRAMS` programs are needed.
        """
        probed: set[InputSize] = set()
        while (missed := self._first_missed(probed)) is not None:
            if len(self.programs) >= MAX_PROGRAMS * len(self._inputs(missed)):
                raise self._not_served(missed)
            count = len(self.programs)
            for inputs in self._inputs(missed):
                self.session.call(inputs)
            if len(self.programs) == count:  # the call ran in eager PyTorch
                raise self._not_served(missed)
            probed.clear()
        count = math.prod(map(len, self._sizes_to_probe().values()))
        sampling = f"; {MAX_PROBES} random combinations of {count}" if count > MAX_PROBES else ""
        return f"tried {len(probed)} sizes: the ends, and the sizes next to each number in a constraint{sampling}"

    def coverage_proof(self) -> str:
        """Check that the constraints of the program allow all sizes of the ranges, without running the program.

        Returns the result in words. Raises `RangeNotServed` if the program has constant sizes, or if its constraints
        exclude sizes of the ranges.
        """
        for program in self.programs:
            if program.constant_because or program.shortfalls:
                raise self._not_served(self.traced)
        return (
            "no size was tried, because the program is for another GPU; its constraints allow all sizes of the ranges"
        )

    def _first_missed(self, probed: set[InputSize]) -> InputSize | None:
        """Return the first size that was not probed before and that no program accepts; None if there is none."""
        for size in self._probes():
            if size not in probed:
                probed.add(size)
                if not self._is_served(size):
                    return size
        return None

    def _probes(self) -> Iterator[InputSize]:
        """Yield the points of the ranges, then combinations of sizes near each number in a constraint.

        If there are too many combinations, each size is combined with the traced sizes, and random combinations are
        added.
        """
        yield from points_of(self.ranges, self.traced)
        sizes = self._sizes_to_probe()
        count = math.prod(map(len, sizes.values()))
        if count > MAX_PROBES:
            yield from (self.traced._replace(**{name: size}) for name, values in sizes.items() for size in values)
        draw = Random(0)  # noqa: S311 - the same sizes in each run
        indices = range(count) if count <= MAX_PROBES else draw.sample(range(count), MAX_PROBES)
        yield from (self._combination(sizes, index) for index in indices)

    def _combination(self, sizes: Mapping[str, Sequence[int]], index: int) -> InputSize:
        """Return the combination of sizes with this number."""
        chosen = {}
        for name, values in sizes.items():
            index, number = divmod(index, len(values))
            chosen[name] = values[number]
        return self.traced._replace(**chosen)

    def _sizes_to_probe(self) -> dict[str, list[int]]:
        """Return, for each dimension, its traced size, its range's ends, and sizes near a number in a constraint."""
        nearby = sorted({number + step for number in numbers_in_constraints(self.programs) for step in (-1, 0, 1)})
        return {
            name: [
                *dict.fromkeys(
                    (getattr(self.traced, name), lower, upper, *(size for size in nearby if lower <= size < upper))
                )
            ]
            for name, (lower, upper) in self.ranges.items()
        }

    def _is_served(self, size: InputSize) -> bool:
        return all(map(self.session.serves, self._inputs(size)))

    def _inputs(self, size: InputSize) -> list[Inputs]:
        """Return inputs of a size: with and without the optional inputs that callers may pass."""
        inputs = self.session.inputs(size)
        return [inputs, *self.session.variants(inputs)]

    def _not_served(self, missed: InputSize) -> RangeNotServed:
        programs = self.programs
        limits = limits_of_programs(programs) or "guards"
        sizes = ", ".join(f"{name} {missed.stated[name]}" for name in self.ranges)
        ranges = ranges_in_words(self.ranges)
        return RangeNotServed(
            f"{len(programs)} programs do not serve all of {ranges}: {sizes} needs another program; {limits}",
            fix="use a narrower range, or leave out --dynamic",
        )


def numbers_in_constraints(programs: Iterable[Program]) -> set[int]:
    """Return the integers in the conditions under which programs are valid."""
    return {number for program in programs for constraint in program.constraints for number in constraint.integers}


def limits_of_programs(programs: Sequence[Program], max_constraints: int | None = None) -> str:
    """Return why a program has constant sizes, or otherwise its first constraints; empty if there are none."""
    constant_because = next((program.constant_because for program in programs if program.constant_because), "")
    constraints = [
        str(constraint)
        for program in programs
        for constraint in program.constraints
        if constraint.needed != GIVEN_RANGE
    ]
    if constant_because:
        return f"it was traced for its sizes, because {constant_because}"
    return "; ".join([*dict.fromkeys(constraints)][:max_constraints])
