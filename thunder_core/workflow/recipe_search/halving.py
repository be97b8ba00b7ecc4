"""Successive halving: a few rounds for all candidates, then twice as many for the candidates that can still win.

The method is described in Karnin, Koren and Somekh, Almost Optimal Exploration in Multi-Armed Bandits (2013). In this
implementation, a candidate gets more rounds while its confidence interval overlaps the leader's interval. The caller
passes the functions that measure candidates and check the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.verdict import MIN_ROUNDS, WIDEST_INTERVAL
from thunder_core.workflow.recipe_search.bounds import CandidateCost, misses
from thunder_core.workflow.report.search import End, SearchBounds

ROUNDS = (10, 20, 40, 80)  # the total number of rounds of a candidate after each stage


class RankedCandidate(Protocol):
    """The attributes of a candidate on which a decision of the search depends."""

    @property
    def rank(self) -> int:
        """The number of steps from eager PyTorch."""


@dataclass(frozen=True)
class CandidateFinding:
    """The measurements of a candidate: its score (higher is better), the number of rounds, and its cost.

    An `exact` score needs no more rounds. A candidate without a score is refused for a `reason`. If the refusal
    `is_temporary`, the candidate may be tried again.
    """

    score: Interval | None = None
    rounds: int = 0
    exact: bool = False
    cost: CandidateCost = field(default_factory=CandidateCost)
    reason: str = ""
    is_temporary: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether the score is reliable: it has enough rounds, and its interval is not too wide."""
        if self.score is None or self.exact:
            return self.score is not None
        return self.rounds >= MIN_ROUNDS and self.score.high <= WIDEST_INTERVAL * self.score.low


Candidate = TypeVar("Candidate", bound=RankedCandidate)
Measure = Callable[[Candidate, int], CandidateFinding]


def meets(bounds: SearchBounds, finding: CandidateFinding) -> bool:
    """Whether a candidate was measured and misses no bound."""
    return finding.score is not None and not any(misses(bounds, finding.cost))


def leader_of(findings: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> Candidate | None:
    """Return the candidate with the best score among the settled candidates within the bounds, or None."""
    settled = [candidate for candidate, finding in findings.items() if finding.is_settled and meets(bounds, finding)]
    return max(settled, key=lambda candidate: (_score(findings[candidate]).value, -candidate.rank), default=None)


def possible_winners(findings: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> list[Candidate]:
    """Return the candidates within the bounds that could be as good as the leader, the best first."""
    leader = leader_of(findings, bounds)
    scores = {candidate: _score(finding) for candidate, finding in findings.items() if meets(bounds, finding)}
    near = [candidate for candidate, score in scores.items() if leader is None or score.high >= scores[leader].low]
    return sorted(near, key=lambda candidate: (-scores[candidate].value, candidate.rank))


def choose(findings: dict[Candidate, CandidateFinding], bounds: SearchBounds) -> Candidate | None:
    """Return the winner, or None if no settled candidate is within the bounds.

    Among the candidates that cannot be distinguished from the leader, the candidate nearest to eager PyTorch wins. A
    candidate whose score is not settled does not win.
    """
    equal = [candidate for candidate in possible_winners(findings, bounds) if findings[candidate].is_settled]
    return min(equal, key=lambda candidate: (candidate.rank, -_score(findings[candidate]).value), default=None)


@dataclass
class Halving(Generic[Candidate]):
    """A search among candidates, in the order of their first trials.

    `measure(candidate, rounds)` measures more rounds of a candidate, and returns its finding over all rounds.
    `has_time()` returns whether there is time for another measurement. `findings` may contain findings of an earlier
    search.
    """

    candidates: Sequence[Candidate]
    measure: Measure[Candidate]
    bounds: SearchBounds
    has_time: Callable[[], bool]
    findings: dict[Candidate, CandidateFinding] = field(default_factory=dict)
    stages: Sequence[int] = ROUNDS

    def run(self) -> End:
        """Measure until more rounds would not change the result, or until the time has ended."""
        for stage, rounds in enumerate(self.stages):
            for candidate in self._next_candidates(stage):
                if not self._needs_rounds(candidate, rounds):
                    continue
                if not self.has_time():
                    return "out of time"
                missing = rounds - self._rounds(candidate)
                self.findings[candidate] = self.measure(candidate, missing)
            if self.is_decided:
                break
        return "decided"

    @property
    def is_decided(self) -> bool:
        """Whether at most one candidate can still win, or all candidates that can still win have exact scores."""
        near = possible_winners(self.findings, self.bounds)
        return len(near) <= 1 or all(self.findings[candidate].exact for candidate in near)

    def _next_candidates(self, stage: int) -> Sequence[Candidate]:
        return self.candidates if stage == 0 else possible_winners(self.findings, self.bounds)

    def _rounds(self, candidate: Candidate) -> int:
        return self.findings[candidate].rounds if candidate in self.findings else 0

    def _needs_rounds(self, candidate: Candidate, rounds: int) -> bool:
        """Whether a candidate needs more rounds. A permanent refusal and an exact score need no more rounds."""
        finding = self.findings.get(candidate)
        if finding is None or finding.is_temporary:
            return True
        return finding.score is not None and not finding.exact and finding.rounds < rounds


def _score(finding: CandidateFinding) -> Interval:
    assert finding.score is not None
    return finding.score
