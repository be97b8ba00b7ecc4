"""The task of one process of a search: the model, the candidate and the number of rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts


@dataclass(frozen=True)
class TrialTask:
    """A trial of one candidate with a number of rounds.

    The `first` trial also validates and measures the loss and the memory. Later trials leave the `skipped` layers in
    float, which the first trial has determined.
    """

    subject: SearchSubject
    candidate: Candidate
    rounds: int
    objective: str
    first: bool = True
    skipped: tuple[str, ...] = ()

    def run(self) -> TrialFacts:
        """Try the candidate in this process."""
        return self.subject.try_candidate(self)


class SearchSubject(Protocol):
    """The model of a search: a model that a request names, or a module."""

    def try_candidate(self, task: TrialTask) -> TrialFacts:
        """Try a candidate in this process; raise the errors of the pipeline."""
