"""Dispatch: the program of many that takes a call, found by what those that refused it met."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from thunder_core.backend.runtime.keys import key_of
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.requirement import Place
from thunder_core.tracing.library.objects import GuardFailed, UnexpectedValue

Refusal = tuple[Program, Exception]
Feature = tuple[str, Hashable]  # the place where a program refused a call, and what it met there
MOST_FEATURES = 4096  # with more the whole index is dropped: all that is in it are hints
NO_PROGRAMS: dict[Program, None] = {}  # read only


class ProgramIndex:
    """An index from what programs met where they refused calls to the programs that took such calls.

    It only holds hints: each program that it leads to still checks all of its guards.
    """

    def __init__(self) -> None:
        self._programs: dict[Feature, dict[Program, None]] = {}

    def programs_with(self, feature: Feature) -> dict[Program, None]:
        """The programs that took a call with such a feature, in the order in which they first did."""
        return self._programs.get(feature, NO_PROGRAMS)

    def add(self, program: Program, features: Sequence[Feature]) -> None:
        """Record that a program took a call with these features."""
        for feature in features:
            programs = self._programs.get(feature)
            if programs is None:
                if len(self._programs) >= MOST_FEATURES:
                    self._programs.clear()
                self._programs[feature] = {program: None}
            elif program not in programs:
                programs[program] = None

    def discard(self, program: Program) -> None:
        """Remove a program that is not kept any more."""
        for programs in self._programs.values():
            programs.pop(program, None)


class Route:
    """The way of one call through the programs: those that refused it, and which to ask next."""

    __slots__ = ("_asked", "_index", "_likely", "_programs", "features", "places", "refusals")

    def __init__(self, programs: Iterable[Program], index: ProgramIndex) -> None:
        self.refusals: list[Refusal] = []
        self.features: list[Feature] = []
        self.places: list[Place] = []  # where the programs that refused it met something else
        self._programs = programs
        self._index = index
        self._likely: dict[Program, None] = NO_PROGRAMS
        self._asked: set[Program] = set()

    def after(self, program: Program, error: Exception) -> Program | None:
        """The program to ask next: one that took calls with all that was met, or the last of it, else any other."""
        asked = self._asked
        asked.add(program)
        self.refusals.append((program, error))
        if isinstance(error, GuardFailed):
            feature = place_of(program, error), key_of(error.found)
            self.features.append(feature)
            guard = program.guard_of(error)
            if guard is not None and guard.place is not None:
                self.places.append(guard.place)
            likely = dict(self._index.programs_with(feature))  # as other threads may add to it
            common = {one: None for one in likely if one in self._likely} if self._likely else likely
            self._likely = common or likely
            for candidate in reversed(self._likely):
                if candidate not in asked:
                    return candidate
        return next((one for one in list(self._programs) if one not in asked), None)

    @property
    def has_more(self) -> bool:
        """Whether there is a program that was not asked, as another thread has compiled it meanwhile."""
        return any(one not in self._asked for one in list(self._programs))

    def in_order(self) -> list[Refusal]:
        """The refusals in the order of the programs."""
        places = {program: place for place, program in enumerate(list(self._programs))}
        return sorted(self.refusals, key=lambda refusal: places.get(refusal[0], len(places)))


def place_of(program: Program, error: GuardFailed) -> str:
    """The guard, or the user's line, at which a program refused a call, without its values."""
    if isinstance(error, UnexpectedValue):
        return f"line {program.line_of(error)}"
    guard = program.guard_of(error)
    return "" if guard is None else guard.path
