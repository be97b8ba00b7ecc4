"""Run a search: run trials in separate processes until a time limit, and report all results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from thunder_core.foundation.errors import (
    BadOption,
    ModelRaises,
    OutOfMemory,
    SearchOutOfTime,
    ThunderError,
    all_errors,
)
from thunder_core.workflow.recipe_search.candidate import Candidate, ExcludedCandidate
from thunder_core.workflow.recipe_search.halving import ROUNDS, CandidateFinding, Halving, choose, leader_of
from thunder_core.workflow.recipe_search.observer import SearchObserver, SilentObserver
from thunder_core.workflow.recipe_search.process import run_in_process
from thunder_core.workflow.recipe_search.rows import rows_of
from thunder_core.workflow.recipe_search.stored_trials import StoredTrials
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.trial_task import SearchSubject, TrialTask
from thunder_core.workflow.recipe_search.why import bound_error, reason_in_words
from thunder_core.workflow.report.search import End, SearchBounds, SearchCandidate, SearchReport

BENCHMARK_SECONDS = 4.0  # seconds to measure and write the winner, in addition to the time of its trial
RunTrial = Callable[[TrialTask, float], TrialFacts | TrialRefusal]
Results = dict[Candidate, TrialFacts | TrialRefusal]


@dataclass(eq=False)
class SearchRun:
    """The trials of a search. If the search `writes`, it reserves time to write the winner.

    `reused` are the candidates whose results come from an earlier search.
    """

    subject: SearchSubject
    candidates: list[Candidate]
    excluded: list[ExcludedCandidate]
    objective: str
    bounds: SearchBounds
    budget: float
    stored_trials: StoredTrials
    fresh: bool = False
    writes: bool = True
    observer: SearchObserver = field(default_factory=SilentObserver)
    run_trial: RunTrial = run_in_process
    began: float = field(default_factory=time.monotonic)
    results: Results = field(default_factory=dict)
    reused: set[Candidate] = field(default_factory=set)
    end: End = "decided"

    @property
    def eager(self) -> Candidate:
        """The candidate that is the model in eager PyTorch."""
        return self.candidates[0]

    def run(self) -> None:
        """Try candidates until the result is decided, the time has ended or Ctrl-C is pressed.

        Raises the errors of eager PyTorch for the model, `BadOption` for a bound on logits if the model has no logits,
        `SearchOutOfTime` if eager PyTorch was not measured in time, and `KeyboardInterrupt` if no other candidate was
        measured.
        """
        self._reuse_stored_results()
        try:
            self._require_eager()
            halving = Halving(self.candidates, self._measure, self.bounds, self._has_time, self.findings)
            self.end = halving.run()
        except KeyboardInterrupt:
            if not self._measured_others:
                raise
            self.end = "interrupted"

    @property
    def findings(self) -> dict[Candidate, CandidateFinding]:
        """The findings of all candidates that have results."""
        return {candidate: self._finding(result) for candidate, result in self.results.items()}

    @property
    def winner(self) -> Candidate | None:
        """The winner according to the results so far, or None."""
        return choose(self.findings, self.bounds)

    def refuse(self, candidate: Candidate, error: ThunderError) -> None:
        """Refuse a candidate that failed while it was written."""
        self.results[candidate] = TrialRefusal(reason=f"{error.code} {error.what}")

    def report(self) -> SearchReport:
        """Return the report of all results.

        Raises `BoundMissed` if no candidate is within the bounds, and `SearchOutOfTime` if no candidate other than
        eager PyTorch was tried in time. The `report` attribute of both errors is the report.
        """
        rows = self._rows()
        winner = self.winner
        facts = [result for result in self.results.values() if isinstance(result, TrialFacts)]
        report = SearchReport(
            objective=self.objective,
            bounds=self.bounds,
            budget=self.budget,
            seconds=round(time.monotonic() - self.began, 2),
            end=self.end,
            machine=next((measured.machine for measured in facts), ""),
            call=next((measured.call for measured in facts), ""),
            kept=len(self.reused),
            winner="" if winner is None else winner.name,
            why="" if winner is None else reason_in_words(rows, winner, self.objective, self.end),
            candidates=rows,
        )
        if winner is None:
            raise bound_error(report)
        if self.end != "decided" and not self._tried_others:
            raise self._out_of_time(report)
        return report

    def _reuse_stored_results(self) -> None:
        if self.fresh:
            return
        for candidate in self.candidates:
            result = self.stored_trials.get(candidate)
            if result is not None:
                self.results[candidate] = result
                self.reused.add(candidate)

    def _require_eager(self) -> None:
        """Try eager PyTorch first, because no candidate can run a model that eager PyTorch cannot run."""
        if self.eager not in self.results:
            self._measure(self.eager, ROUNDS[0])
        result = self.results[self.eager]
        if isinstance(result, TrialRefusal):
            raise self._error_of(result)
        self._require_logits(result)

    def _error_of(self, refusal: TrialRefusal) -> ThunderError:
        kind = next((error for error in all_errors() if error.code == refusal.code), None)
        if kind is not None:
            return kind(refusal.reason.removeprefix(f"{refusal.code} "), fix=refusal.fix)
        if self._seconds_left() <= 0:
            return self._out_of_time(None)
        if refusal.is_raised:
            return ModelRaises(
                f"the model raises an error in eager PyTorch: {refusal.reason}",
                fix="run the model in eager PyTorch, and correct the model or its inputs",
            )
        return OutOfMemory(
            f"eager PyTorch could not be measured: {refusal.reason}",
            fix="run the model in eager PyTorch to see what fails; if its process was killed, it needs more memory",
        )

    def _require_logits(self, eager: TrialFacts) -> None:
        bounds = {"--max-kl": self.bounds.max_kl, "--min-top1": self.bounds.min_top1}
        names = [name for name, bound in bounds.items() if bound is not None]
        if names and not eager.has_logits:
            raise BadOption(
                f"{', '.join(names)} is for models with logits, and this model has none",
                fix="bound the relative error of the outputs (--max-error 0.01; in Python max_error)",
            )

    def _out_of_time(self, report: SearchReport | None) -> SearchOutOfTime:
        other = "" if report is None else " other than eager PyTorch"
        error = SearchOutOfTime(
            f"the search reached its time limit of {self.budget:.0f} s before a candidate{other} was measured; nothing "
            "was written",
            fix='allow more time (--search 10m; in Python budget="10m"); the results so far are kept',
        )
        error.report = report
        return error

    def _measure(self, candidate: Candidate, rounds: int) -> CandidateFinding:
        """Try a candidate, and combine the result with the results of its earlier trials."""
        before = self.results.get(candidate)
        earlier = before if isinstance(before, TrialFacts) else None
        task = TrialTask(
            self.subject,
            candidate,
            rounds,
            self.objective,
            first=earlier is None,
            skipped=earlier.skipped if earlier else (),
        )
        leader = self._leader()
        position = (self.candidates.index(candidate) + 1, len(self.candidates))
        self.observer.begin_trial(candidate.name, position, leader, self._seconds_left())
        result = self.run_trial(task, self._time_limit(task))
        if earlier is not None:
            result = earlier.with_later_rounds(result) if isinstance(result, TrialFacts) else earlier
        self.results[candidate] = result
        if (
            isinstance(result, TrialFacts) or candidate != self.eager
        ):  # an error of eager is not stored: users correct it
            self.stored_trials.keep(candidate, result)
        self.observer.end_trial(self._row_of(candidate), self._leader(), self._seconds_left())
        return self._finding(result)

    def _finding(self, result: TrialFacts | TrialRefusal) -> CandidateFinding:
        return result.finding if isinstance(result, TrialRefusal) else result.finding(self.objective)

    def _has_time(self) -> bool:
        return self._seconds_left() > 0

    def _time_limit(self, task: TrialTask) -> float:
        """Return the seconds that a trial may take; a first trial leaves the same time to write its candidate later."""
        is_new = task.first and self.writes and not task.candidate.is_eager
        rest = self.budget - (time.monotonic() - self.began) - BENCHMARK_SECONDS
        return max(0.0, min(self._seconds_left(), rest / 2)) if is_new else self._seconds_left()

    def _seconds_left(self) -> float:
        """Return the seconds that are left for trials, without the time to write the winner."""
        return max(0.0, self.budget - (time.monotonic() - self.began) - self._writing_seconds)

    @property
    def _writing_seconds(self) -> float:
        """The seconds to write the leader: the time of its first trial, and time for the benchmark."""
        leader = leader_of(self.findings, self.bounds) if self.writes else None
        result = None if leader is None else self.results[leader]
        return (
            result.first_trial_seconds + BENCHMARK_SECONDS
            if isinstance(result, TrialFacts) and leader != self.eager
            else 0.0
        )

    @property
    def _measured_others(self) -> bool:
        return any(isinstance(result, TrialFacts) and not result.is_eager for result in self.results.values())

    @property
    def _tried_others(self) -> bool:
        results = (result for candidate, result in self.results.items() if candidate != self.eager)
        return any(isinstance(result, TrialFacts) or not result.is_temporary for result in results)

    def _rows(self) -> tuple[SearchCandidate, ...]:
        return rows_of(self.candidates, self.excluded, self.results, self.bounds)

    def _leader(self) -> SearchCandidate | None:
        leader = leader_of(self.findings, self.bounds)
        return None if leader is None else self._row_of(leader)

    def _row_of(self, candidate: Candidate) -> SearchCandidate:
        return next(row for row in self._rows() if row.name == candidate.name)
