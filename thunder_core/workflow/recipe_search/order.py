"""The order that a process of a search carries out: which candidate of which model, and how many rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts


@dataclass(frozen=True)
class Order:
    """A trial of one candidate: so many rounds, in the `first` one with validation, loss and memory.

    Later ones leave the `skipped` layers in float, as the first trial has found.
    """

    subject: SearchSubject
    candidate: Candidate
    rounds: int
    objective: str
    first: bool = True
    skipped: tuple[str, ...] = ()

    def carry_out(self) -> TrialFacts:
        """Try the candidate, in this process."""
        return self.subject.try_candidate(self)


class SearchSubject(Protocol):
    """The model of a search: named by a request, or a module."""

    def try_candidate(self, order: Order) -> TrialFacts:
        """Try a candidate, in this process; raises what the pipeline raises."""
