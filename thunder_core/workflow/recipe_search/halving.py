"""Successive halving: few rounds for all candidates, then twice as many for those that could still win.

The idea is that of Karnin, Koren and Somekh, Almost Optimal Exploration in Multi-Armed Bandits (2013). Here a candidate
goes on while its confidence interval overlaps that of the leader, so that no round is spent on what is decided.
The module only decides: what it is given measures, and knows the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.verdict import MIN_ROUNDS, WIDEST_INTERVAL
from thunder_core.workflow.recipe_search.bounds import CandidateCost, misses
from thunder_core.workflow.report.search import End, SearchBounds

ROUNDS = (10, 20, 40, 80)  # that a candidate has in all after each stage


class Ranked(Protocol):
    """A candidate, as far as a decision looks at it."""

    @property
    def rank(self) -> int:
        """The steps from eager PyTorch."""


@dataclass(frozen=True)
class CandidateFinding:
    """The knowledge of a candidate: its score (more is better), the rounds behind it, and its cost.

    A score that is `exact` needs no more rounds. Without a score the candidate is refused, for a `reason`; it may be
    tried again where the refusal does not last (`passing`).
    """

    score: Interval | None = None
    rounds: int = 0
    exact: bool = False
    cost: CandidateCost = field(default_factory=CandidateCost)
    reason: str = ""
    passing: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether the score can be told from others: enough rounds, and an interval that is not too wide."""
        if self.score is None or self.exact:
            return self.score is not None
        return self.rounds >= MIN_ROUNDS and self.score.high <= WIDEST_INTERVAL * self.score.low


Candidate = TypeVar("Candidate", bound=Ranked)
Measure = Callable[[Candidate, int], CandidateFinding]


def meets(bounds: SearchBounds, finding: CandidateFinding) -> bool:
    """Whether a finding is of a candidate that was measured and misses no bound."""
    return finding.score is not None and not any(misses(bounds, finding.cost))


def leader_of(found: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> Candidate | None:
    """The candidate with the best score of those that are settled and within the bounds."""
    settled = [one for one, finding in found.items() if finding.is_settled and meets(bounds, finding)]
    return max(settled, key=lambda one: (_score(found[one]).value, -one.rank), default=None)


def contenders(found: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> list[Candidate]:
    """The candidates within the bounds that could be as good as the leader, the best first."""
    leader = leader_of(found, bounds)
    within = [one for one, finding in found.items() if meets(bounds, finding)]
    near = [one for one in within if leader is None or _score(found[one]).high >= _score(found[leader]).low]
    return sorted(near, key=lambda one: (-_score(found[one]).value, one.rank))


def choose(found: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> Candidate | None:
    """The winner: of those that cannot be told from the leader, the one that is nearest to eager PyTorch.

    One whose score is not settled does not win. None where no candidate is within the bounds.
    """
    equal = [one for one in contenders(found, bounds) if found[one].is_settled]
    return min(equal, key=lambda one: (one.rank, -_score(found[one]).value), default=None)


@dataclass
class Halving(Generic[Candidate]):
    """A search among candidates, in the order in which they are tried first.

    `measure(candidate, rounds)` adds rounds to what is known of a candidate, and returns all that is known then;
    `goes_on()` says whether there is time for one more call of it. `found` may hold what is known from earlier.
    """

    candidates: Sequence[Candidate]
    measure: Measure[Candidate]
    bounds: SearchBounds
    goes_on: Callable[[], bool]
    found: dict[Candidate, CandidateFinding] = field(default_factory=dict)
    stages: Sequence[int] = ROUNDS

    def run(self) -> End:
        """Measure until more rounds would not change the result, or the time has ended."""
        for stage, rounds in enumerate(self.stages):
            for candidate in self._next(stage):
                if not self._lacks(candidate, rounds):
                    continue
                if not self.goes_on():
                    return "out of time"
                missing = rounds - self._rounds(candidate)
                self.found[candidate] = self.measure(candidate, missing)
            if self.is_decided:
                break
        return "decided"

    @property
    def is_decided(self) -> bool:
        """Whether no candidate is left that could be as good as the leader, unless nothing more can be known of it."""
        near = contenders(self.found, self.bounds)
        return len(near) <= 1 or all(self.found[one].exact for one in near)

    def _next(self, stage: int) -> Sequence[Candidate]:
        return self.candidates if stage == 0 else contenders(self.found, self.bounds)

    def _rounds(self, candidate: Candidate) -> int:
        return self.found[candidate].rounds if candidate in self.found else 0

    def _lacks(self, candidate: Candidate, rounds: int) -> bool:
        """Whether a candidate is to have more rounds: one that was refused for good, or is exact, is not."""
        known = self.found.get(candidate)
        if known is None or known.passing:
            return True
        return known.score is not None and not known.exact and known.rounds < rounds


def _score(finding: CandidateFinding) -> Interval:
    assert finding.score is not None
    return finding.score
