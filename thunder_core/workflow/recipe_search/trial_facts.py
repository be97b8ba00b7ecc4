"""The results of the trials of one candidate, as plain data that a process returns and the cache stores."""

from __future__ import annotations

from functools import lru_cache

from pydantic import AliasChoices, Field

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.report import BenchmarkCandidate
from thunder_core.workflow.benchmark.statistics import EXACTLY_ONE, describe_candidate
from thunder_core.workflow.benchmark.verdict import verdict_of
from thunder_core.workflow.recipe_search.bounds import CandidateCost
from thunder_core.workflow.recipe_search.halving import CandidateFinding
from thunder_core.workflow.validation.report_facts import ReportFacts


@lru_cache(maxsize=128)
def statistics_of(
    seconds: tuple[float, ...], eager_seconds: tuple[float, ...], peak_bytes: int | None
) -> BenchmarkCandidate:
    """Return the statistics of a candidate's times, compared with the times of eager PyTorch.

    The statistics are cached, because a search reads them after each trial.
    """
    return describe_candidate("", seconds, eager_seconds, peak_bytes)


class TrialFacts(ReportFacts):
    """The results of the trials of one candidate: the times of all rounds, the loss and the memory.

    Stored results of Thunder 0.2.0 have the names `ours`, `asked` and `took` of three fields.
    """

    eager: tuple[float, ...]
    """The seconds of eager PyTorch in each round; the rounds of later processes follow those of earlier processes."""
    candidate_times: tuple[float, ...] = Field(validation_alias=AliasChoices("candidate_times", "ours"))
    """The seconds of the candidate in the same rounds; equal to `eager` if the candidate is eager PyTorch."""
    requested_rounds: int = Field(default=0, validation_alias=AliasChoices("requested_rounds", "asked"))
    """The number of requested rounds; fast calls get more rounds, and slow calls with a time limit get fewer."""
    machine: str = ""
    call: str = ""
    """The call that was measured, in words."""
    error: float | None = None
    """The relative error of the outputs."""
    kl: float | None = None
    top1: float | None = None
    memory: int | None = None
    """The bytes of the weights, and of the peak of one call in addition."""
    size: int | None = None
    """The bytes of the weights."""
    skipped: tuple[str, ...] = ()
    """The layers that were left in float."""
    has_logits: bool = False
    first_trial_seconds: float = Field(default=0.0, validation_alias=AliasChoices("first_trial_seconds", "took"))
    """The seconds of the first trial, after its process has loaded the model."""

    @property
    def is_eager(self) -> bool:
        """Whether the candidate is eager PyTorch."""
        return self.eager == self.candidate_times

    @property
    def measured(self) -> BenchmarkCandidate:
        """The statistics of the candidate, compared with eager PyTorch."""
        return statistics_of(self.candidate_times, self.candidate_times if self.is_eager else self.eager, self.memory)

    @property
    def speed(self) -> Interval:
        """The speed as a multiple of the speed of eager PyTorch."""
        return EXACTLY_ONE if self.is_eager else self.measured.speedup

    @property
    def verdict(self) -> str:
        """The verdict on the speed; empty for eager PyTorch."""
        if self.is_eager:
            return ""
        return verdict_of(
            self.speed, len(self.candidate_times), statistics_of(self.eager, self.eager, None), self.measured
        )

    def with_later_rounds(self, later: TrialFacts) -> TrialFacts:
        """Return these facts with the rounds of a later process; the memory and the loss do not change."""
        times = {"eager": self.eager + later.eager, "candidate_times": self.candidate_times + later.candidate_times}
        return self.model_copy(update={**times, "requested_rounds": self.requested_rounds + later.requested_rounds})

    def finding(self, objective: str) -> CandidateFinding:
        """Return the finding for an objective: the score, the number of rounds and the cost."""
        cost, rounds = (
            CandidateCost(self.kl, self.top1, self.error, self.memory),
            min(self.requested_rounds, len(self.candidate_times)),
        )
        bytes_taken = {"memory": self.memory, "size": self.size}
        if objective not in bytes_taken:
            return CandidateFinding(self.speed, rounds, exact=self.is_eager, cost=cost)
        bytes_of_objective = bytes_taken[objective]
        if bytes_of_objective is None:
            return CandidateFinding(reason=f"its {objective} is not known")
        score = Interval(value=-bytes_of_objective, low=-bytes_of_objective, high=-bytes_of_objective)
        return CandidateFinding(score, rounds, exact=True, cost=cost)


class TrialRefusal(ReportFacts):
    """The reason why a candidate is refused. If the refusal `is_temporary`, a later search tries again.

    `is_raised` is True if the trial raised an error that is neither Thunder's nor a lack of memory. For an error of
    Thunder, `code`, `fix` and `status` are those of the error.
    """

    reason: str
    is_temporary: bool = False
    timed_out: bool = False
    is_raised: bool = False
    code: str = ""
    fix: str = ""
    status: int = 0

    @property
    def finding(self) -> CandidateFinding:
        """The finding of a refused candidate, which has no score."""
        return CandidateFinding(reason=self.reason, is_temporary=self.is_temporary)
