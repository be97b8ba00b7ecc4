"""A search that runs: trials in processes of their own, within a time, and the report of all that was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from thunder_core.foundation.errors import BadOption, OutOfMemory, SearchOutOfTime, ThunderError, all_errors
from thunder_core.workflow.recipe_search.candidate import Candidate, Excluded
from thunder_core.workflow.recipe_search.halving import CandidateFinding, Halving, choose, leader_of
from thunder_core.workflow.recipe_search.kept import KeptTrials
from thunder_core.workflow.recipe_search.observer import NobodyObserves, SearchObserver
from thunder_core.workflow.recipe_search.order import Order, SearchSubject
from thunder_core.workflow.recipe_search.process import run_in_process
from thunder_core.workflow.recipe_search.rows import rows_of
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.why import bound_missed, reason_in_words
from thunder_core.workflow.report.search import End, SearchBounds, SearchCandidate, SearchReport

BENCHMARK = 4.0  # seconds that measuring and writing the winner take beside what its trial took
RunTrial = Callable[[Order, float], TrialFacts | TrialRefusal]
Results = dict[Candidate, TrialFacts | TrialRefusal]


@dataclass(eq=False)
class SearchRun:
    """The trials of a search; where it `writes`, time is left to write the winner."""

    subject: SearchSubject
    candidates: list[Candidate]
    excluded: list[Excluded]
    objective: str
    bounds: SearchBounds
    budget: float
    kept: KeptTrials
    fresh: bool = False
    writes: bool = True
    observer: SearchObserver = field(default_factory=NobodyObserves)
    run_trial: RunTrial = run_in_process
    began: float = field(default_factory=time.monotonic)
    results: Results = field(default_factory=dict)
    known: set[Candidate] = field(default_factory=set)
    end: End = "decided"

    @property
    def eager(self) -> Candidate:
        """The candidate that is the model itself."""
        return self.candidates[0]

    def run(self) -> None:
        """Try candidates until the result is decided, the time has ended or Ctrl-C is pressed.

        Raises what eager PyTorch raises for the model, `BadOption` for a bound that it has no measure for,
        `SearchOutOfTime` where not even eager PyTorch was measured, and `KeyboardInterrupt` where no candidate was.
        """
        self._recall()
        try:
            self._require_eager()
            halving = Halving(self.candidates, self._measure, self.bounds, self._goes_on, self.findings)
            self.end = halving.run()
        except KeyboardInterrupt:
            if not self._others_measured:
                raise
            self.end = "interrupted"

    @property
    def findings(self) -> dict[Candidate, CandidateFinding]:
        """The results, as the decision looks at them."""
        return {one: self._finding(result) for one, result in self.results.items()}

    @property
    def winner(self) -> Candidate | None:
        """The winner, by what is known now."""
        return choose(self.findings, self.bounds)

    def refuse(self, candidate: Candidate, error: ThunderError) -> None:
        """Refuse a candidate that fails when it is to be written."""
        self.results[candidate] = TrialRefusal(reason=f"{error.code} {error.what}")

    def report(self) -> SearchReport:
        """The report of all that was found.

        Raises `BoundMissed`, with the report as its `report`, where nobody is within the bounds, and `SearchOutOfTime`
        where no candidate but eager PyTorch was tried.
        """
        rows = self._rows()
        winner = self.winner
        facts = [one for one in self.results.values() if isinstance(one, TrialFacts)]
        found = SearchReport(
            objective=self.objective,
            bounds=self.bounds,
            budget=self.budget,
            seconds=round(time.monotonic() - self.began, 2),
            end=self.end,
            machine=next((one.machine for one in facts), ""),
            call=next((one.call for one in facts), ""),
            kept=len(self.known),
            winner="" if winner is None else winner.name,
            why="" if winner is None else reason_in_words(rows, winner, self.objective, self.end),
            candidates=rows,
        )
        if winner is None:
            raise bound_missed(found)
        if self.end != "decided" and not self._others_tried:
            raise self._out_of_time(found)
        return found

    def _recall(self) -> None:
        if self.fresh:
            return
        for candidate in self.candidates:
            result = self.kept.get(candidate)
            if result is not None:
                self.results[candidate] = result
                self.known.add(candidate)

    def _require_eager(self) -> None:
        """Try eager PyTorch first: what it cannot do, no candidate can."""
        if self.eager not in self.results:
            self._measure(self.eager, 10)
        found = self.results[self.eager]
        if isinstance(found, TrialRefusal):
            raise self._error_of(found)
        self._require_known_loss(found)

    def _error_of(self, refusal: TrialRefusal) -> ThunderError:
        kind = next((one for one in all_errors() if one.code == refusal.code), None)
        if kind is not None:
            return kind(refusal.reason.removeprefix(f"{refusal.code} "), fix=refusal.fix)
        if self._left() <= 0:
            return self._out_of_time(None)
        return OutOfMemory(
            f"eager PyTorch could not be measured: {refusal.reason}",
            fix="run the model in eager PyTorch to see what fails; if its process was killed, it needs more memory",
        )

    def _require_known_loss(self, eager: TrialFacts) -> None:
        bounds = {"--max-kl": self.bounds.max_kl, "--min-top1": self.bounds.min_top1}
        given = [name for name, bound in bounds.items() if bound is not None]
        if given and not eager.has_logits:
            raise BadOption(
                f"{', '.join(given)} is for models with logits, and this model has none",
                fix="bound the relative error of the outputs: --max-error 0.01",
            )

    def _out_of_time(self, report: SearchReport | None) -> SearchOutOfTime:
        error = SearchOutOfTime(
            f"the {self.budget:.0f} s of the search ended before a candidate was measured; nothing was written",
            fix="give it more time: --search 10m; what was measured is kept",
        )
        error.report = report
        return error

    def _measure(self, candidate: Candidate, rounds: int) -> CandidateFinding:
        """Try a candidate, and add what that has found to what is known of it."""
        before = self.results.get(candidate)
        earlier = before if isinstance(before, TrialFacts) else None
        order = Order(
            self.subject,
            candidate,
            rounds,
            self.objective,
            first=earlier is None,
            skipped=earlier.skipped if earlier else (),
        )
        leader = self._leader()
        place = (self.candidates.index(candidate) + 1, len(self.candidates))
        self.observer.trying(candidate.name, place, leader, self._left())
        found = self.run_trial(order, self._limit(order))
        if earlier is not None:
            found = earlier.followed_by(found) if isinstance(found, TrialFacts) else earlier
        self.results[candidate] = found
        self.kept.keep(candidate, found)
        row = next(row for row in self._rows() if row.name == candidate.name)
        self.observer.found(row, self._leader(), self._left())
        return self._finding(found)

    def _finding(self, result: TrialFacts | TrialRefusal) -> CandidateFinding:
        return result.finding if isinstance(result, TrialRefusal) else result.finding(self.objective)

    def _goes_on(self) -> bool:
        return self._left() > 0

    def _limit(self, order: Order) -> float:
        """The seconds that a trial may take: of one that may lead then, as many are left to write it."""
        is_new = order.first and self.writes and not order.candidate.is_eager
        rest = self.budget - (time.monotonic() - self.began) - BENCHMARK
        return max(0.0, min(self._left(), rest / 2)) if is_new else self._left()

    def _left(self) -> float:
        """The seconds that are left for trials: the winner is to be written in time as well."""
        return max(0.0, self.budget - (time.monotonic() - self.began) - self._writing)

    @property
    def _writing(self) -> float:
        """The seconds that writing the leader will take: those of its first trial, and some for the benchmark."""
        leader = leader_of(self.findings, self.bounds) if self.writes else None
        found = None if leader is None else self.results[leader]
        return found.took + BENCHMARK if isinstance(found, TrialFacts) and leader != self.eager else 0.0

    @property
    def _others_measured(self) -> bool:
        return any(isinstance(one, TrialFacts) and not one.is_eager for one in self.results.values())

    @property
    def _others_tried(self) -> bool:
        lasting = (one for name, one in self.results.items() if name != self.eager)
        return any(isinstance(one, TrialFacts) or not one.passing for one in lasting)

    def _rows(self) -> tuple[SearchCandidate, ...]:
        return rows_of(self.candidates, self.excluded, self.results, self.bounds)

    def _leader(self) -> SearchCandidate | None:
        leader = leader_of(self.findings, self.bounds)
        row = partial(next, (row for row in self._rows() if leader is not None and row.name == leader.name))
        return None if leader is None else row()
