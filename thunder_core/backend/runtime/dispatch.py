"""Dispatch: the search for the program that accepts a call, guided by the values that made other programs refuse it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from thunder_core.backend.runtime.keys import key_of
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.requirement import PlainPath
from thunder_core.tracing.library.objects import GuardFailed, UnexpectedValue

Refusal = tuple[Program, Exception]
Feature = tuple[str, Hashable]  # the guard or line at which a program refused a call, and the key of the value
MAX_FEATURES = 4096  # the size at which the index is cleared: its entries are only hints
NO_PROGRAMS: dict[Program, None] = {}  # read only


class RecentPrograms(OrderedDict[Program, None]):
    """The programs of a subject, the most recently used first. Other threads may add and drop programs at any time."""

    def first(self) -> Program | None:
        """Return the program that ran last; None if there is none, or another thread has just added or dropped one."""
        try:
            return next(iter(self), None)
        except RuntimeError:
            return None

    def make_first(self, program: Program) -> None:
        """Make a program the first to try at the next call, unless another thread has dropped it."""
        try:
            self.move_to_end(program, last=False)
        except KeyError:
            return

    def add_first(self, program: Program) -> None:
        """Add a program as the first to try."""
        self[program] = None
        self.move_to_end(program, last=False)


class ProgramIndex:
    """An index from the values for which programs refused calls to the programs that accepted the calls.

    Its entries are only hints: each program still checks all of its guards.
    """

    def __init__(self) -> None:
        self._programs: dict[Feature, dict[Program, None]] = {}

    def programs_with(self, feature: Feature) -> dict[Program, None]:
        """Return the programs that accepted a call with a feature, in the order of their first such call."""
        return self._programs.get(feature, NO_PROGRAMS)

    def add(self, program: Program, features: Sequence[Feature]) -> None:
        """Record that a program accepted a call with these features."""
        for feature in features:
            programs = self._programs.get(feature)
            if programs is None:
                if len(self._programs) >= MAX_FEATURES:
                    self._programs.clear()
                self._programs[feature] = {program: None}
            elif program not in programs:
                programs[program] = None

    def discard(self, program: Program) -> None:
        """Remove a program that is no longer kept."""
        for programs in self._programs.values():
            programs.pop(program, None)


class Route:
    """The search for the program of a call: the programs that refused it, and the program to try next."""

    __slots__ = ("_index", "_likely", "_programs", "_tried", "features", "refusals", "refused_paths")

    def __init__(self, programs: Iterable[Program], index: ProgramIndex) -> None:
        self.refusals: list[Refusal] = []
        self.features: list[Feature] = []
        self.refused_paths: list[PlainPath] = []  # to the values that made programs refuse the call
        self._programs = programs
        self._index = index
        self._likely: dict[Program, None] = NO_PROGRAMS
        self._tried: set[Program] = set()

    def after(self, program: Program, error: Exception) -> Program | None:
        """Return the program to try after a program has refused the call with an error; None if all were tried.

        Programs that accepted earlier calls with the same features come first.
        """
        tried = self._tried
        tried.add(program)
        self.refusals.append((program, error))
        if isinstance(error, GuardFailed):
            feature = refusal_site(program, error), key_of(error.actual)
            self.features.append(feature)
            guard = program.guard_of(error)
            if guard is not None and guard.plain_path is not None:
                self.refused_paths.append(guard.plain_path)
            likely = dict(self._index.programs_with(feature))  # a copy, because other threads may add to it
            common = {candidate: None for candidate in likely if candidate in self._likely} if self._likely else likely
            self._likely = common or likely
            for candidate in reversed(self._likely):
                if candidate not in tried:
                    return candidate
        return next((candidate for candidate in list(self._programs) if candidate not in tried), None)

    @property
    def has_more(self) -> bool:
        """Whether there is an untried program, because another thread has compiled it in the meantime."""
        return any(program not in self._tried for program in list(self._programs))

    @property
    def passes_arguments_differently(self) -> bool:
        """Whether a program refused the call because of the number or the names of its arguments."""
        errors = ((program, error) for program, error in self.refusals if isinstance(error, GuardFailed))
        return any(refusal_site(program, error) in ("args", "kwargs") for program, error in errors)

    def in_order(self) -> list[Refusal]:
        """Return the refusals, sorted by the position of their programs among all programs."""
        positions = {program: index for index, program in enumerate(list(self._programs))}
        return sorted(self.refusals, key=lambda refusal: positions.get(refusal[0], len(positions)))


def refusal_site(program: Program, error: GuardFailed) -> str:
    """Return the guard, or the user's source line, at which a program refused a call, without its values."""
    if isinstance(error, UnexpectedValue):
        return f"line {program.line_of(error)}"
    guard = program.guard_of(error)
    return "" if guard is None else guard.path
