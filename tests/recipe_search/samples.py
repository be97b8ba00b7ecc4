"""Candidates, results and searches with planted times, for tests that start no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thunder_core.workflow.recipe_search.candidate import Candidate, ExcludedCandidate
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.stored_trials import StoredTrials
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.trial_task import TrialTask
from thunder_core.workflow.report.search import SearchBounds

EAGER = Candidate("eager", 0, ("default",))
UNFUSED = Candidate("default without fusion", 1, ("default",), without=("inductor",))
FUSED = Candidate("default", 2, ("default",))
QUANTIZED = Candidate("default + int8", 4, ("default", "int8"), quantizes=True)
CANDIDATES = [EAGER, FUSED, QUANTIZED, UNFUSED]
SPEEDS = {EAGER: 1.0, UNFUSED: 1.1, FUSED: 1.5, QUANTIZED: 2.0}


def facts(candidate: Candidate, rounds: int = 10, **others: Any) -> TrialFacts:
    """What a trial finds: planted speeds, with one percent of noise that repeats."""
    eager = tuple(0.01 * (1 + 0.01 * (number % 3)) for number in range(rounds))
    speed = SPEEDS[candidate]
    ours = eager if candidate is EAGER else tuple(seconds / speed for seconds in reversed(eager))
    loss = {"error": 0.0, "kl": 0.01 if candidate is QUANTIZED else 0.0, "top1": 1.0, "has_logits": True}
    sizes = {"memory": 100 if candidate is QUANTIZED else 200, "size": 50 if candidate is QUANTIZED else 150}
    stated = {"machine": "a machine", "call": "call 1 x 8", "requested_rounds": rounds, "first_trial_seconds": 1.0}
    return TrialFacts.model_validate({"eager": eager, "candidate_times": ours, **loss, **sizes, **stated, **others})


class Planted:
    """Runs trials by planted results, and notes which."""

    def __init__(self, **results: TrialFacts | TrialRefusal | BaseException) -> None:
        self.results = results
        self.tasks: list[TrialTask] = []

    def __call__(self, task: TrialTask, seconds: float) -> TrialFacts | TrialRefusal:
        self.tasks.append(task)
        found = self.results.get(task.candidate.name.replace(" ", "_"), facts(task.candidate, task.rounds))
        if isinstance(found, BaseException):
            raise found
        return found

    @property
    def names(self) -> list[str]:
        return [task.candidate.name for task in self.tasks]


def search_of(folder: Path, trials: Planted, *, objective: str = "latency", **others: Any) -> SearchRun:
    """A search that runs planted trials."""
    bounds = others.pop("bounds", SearchBounds())
    excluded = [ExcludedCandidate(Candidate("default + fp8", 4), "no GPU")]
    stated = {"budget": 1000.0, "stored_trials": StoredTrials(folder), "run_trial": trials, **others}
    return SearchRun(None, [*CANDIDATES], excluded, objective, bounds, **stated)  # type: ignore[arg-type]
