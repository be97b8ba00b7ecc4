"""The results of a search: every candidate with its speed, loss, memory and verdict, and why the winner won."""

from __future__ import annotations

from math import inf, isnan
from typing import Literal

from pydantic import Field

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.validation.report_facts import ReportFacts

State = Literal["measured", "refused", "not applicable", "not tried"]
End = Literal["decided", "out of time", "interrupted"]

ROUNDING = {"kl": 1e-9, "error": 1e-6}  # the largest losses that float32 rounding explains
END_REASONS: dict[End, str] = {
    "decided": "more rounds would not change the result",
    "out of time": "the search reached its time limit",
    "interrupted": "Ctrl-C ended the search",
}


class SearchBounds(ReportFacts):
    """The bounds that the winner must meet; None means no bound."""

    max_kl: float | None = None
    min_top1: float | None = None
    max_error: float | None = None
    max_memory: int | None = None


class SearchCandidate(ReportFacts):
    """A candidate and its results."""

    number: int
    """The number of the candidate in the table and in the plot, starting from 1."""
    name: str
    recipes: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    """The settings other than the recipe, such as `dtype` and `threads`, by the names of command-line options."""
    rank: int
    """The number of steps from eager PyTorch (0); among candidates with indistinguishable scores, the lowest wins."""
    state: State
    reason: str = ""
    """Why the candidate was refused, is not applicable or was not tried.

    For a measured candidate, the bounds that it misses, or the layers that were kept in float.
    """
    speed: Interval | None = None
    """The speed as a multiple of eager PyTorch's speed; both were measured in turn in the same processes."""
    seconds: float | None = None
    """The median time of a call."""
    rounds: int = 0
    verdict: str = ""
    """The speed compared with eager PyTorch: `faster`, `slower`, `not distinguishable` or `unstable`."""
    error: float | None = None
    """The largest relative error of an output, compared with eager PyTorch; None if outputs were not compared."""
    kl: float | None = None
    """The KL divergence of the logits from those of eager PyTorch in nats; None without logits."""
    top1: float | None = None
    memory: int | None = None
    """Bytes of the weights plus the peak of a call."""
    least_memory: int | None = None
    """The planned bytes of the weights, if the candidate is not applicable because they exceed the memory bound."""
    size: int | None = None
    """Bytes of the weights."""
    is_within: bool = False
    """Whether the candidate was measured and meets all bounds."""
    is_on_front: bool = False
    """Whether no other candidate is better in speed or loss without being worse in the other (the Pareto front)."""

    @property
    def loss(self) -> float | None:
        """The KL divergence, or the relative error if there are no logits.

        0 if rounding explains the value, and infinity if it is NaN.
        """
        name, value = ("error", self.error) if self.kl is None else ("kl", self.kl)
        if value is None:
            return None
        if isnan(value):
            return inf
        return value if value > ROUNDING[name] else 0.0


class SearchReport(ReportFacts):
    """The report of a search."""

    objective: str
    bounds: SearchBounds
    budget: float
    """The time limit in seconds."""
    seconds: float
    """The seconds that the search took, not counting the writing of the artifact."""
    end: End
    machine: str
    call: str
    """The timed call: `call 1 x 128`, `training step 1 x 128` or `generation 8 x 128 + 128 tokens`."""
    kept: int = 0
    """The number of candidates with results from an earlier search."""
    winner: str
    why: str
    """The reason why the winner won, in one sentence."""
    candidates: tuple[SearchCandidate, ...]

    @property
    def best(self) -> SearchCandidate | None:
        """The winner, or None if no candidate won."""
        return next((candidate for candidate in self.candidates if candidate.name == self.winner), None)

    @property
    def measured(self) -> tuple[SearchCandidate, ...]:
        """The candidates that were measured."""
        return tuple(candidate for candidate in self.candidates if candidate.state == "measured")

    @property
    def loss_name(self) -> str:
        """The name of the loss in the plot."""
        has_logits = any(candidate.kl is not None for candidate in self.measured)
        return "KL divergence from eager, nats" if has_logits else "relative error, compared with eager"

    @property
    def end_reason(self) -> str:
        """The reason why the search ended, in words."""
        return END_REASONS[self.end]
