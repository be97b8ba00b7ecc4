"""The findings of a search: every candidate with its speed, loss, memory and verdict, and why one of them won."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.validation.report_facts import ReportFacts

State = Literal["measured", "refused", "not applicable", "not tried"]
End = Literal["decided", "out of time", "interrupted"]

ROUNDING = {"kl": 1e-9, "error": 1e-6}  # a loss below it is rounding of float32
ENDS: dict[End, str] = {
    "decided": "more rounds would not change the result",
    "out of time": "the time ended it",
    "interrupted": "Ctrl-C ended it",
}


class SearchBounds(ReportFacts):
    """The bounds that the winner has to meet; None where nothing was asked for."""

    max_kl: float | None = None
    min_top1: float | None = None
    max_error: float | None = None
    max_memory: int | None = None


class SearchCandidate(ReportFacts):
    """One candidate: what it is, and what was found out about it."""

    number: int
    """Its number in the table and in the plot, from 1 on."""
    name: str
    recipes: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    """The settings beside the recipe, such as `dtype` and `threads`, as options of the command line have them."""
    rank: int
    """How far it is from eager PyTorch, which is 0: of candidates that cannot be told apart the least wins."""
    state: State
    reason: str = ""
    """Why it was refused, does not apply or was not tried; of a measured candidate the bound that it misses."""
    speed: Interval | None = None
    """How many times as fast as eager PyTorch, measured in turn in the same processes."""
    seconds: float | None = None
    """The median time of a call."""
    rounds: int = 0
    verdict: str = ""
    """Beside eager PyTorch: `faster`, `slower`, `not distinguishable` or `unstable`."""
    error: float | None = None
    """The relative error of the output that is furthest from eager's; None where it was not compared."""
    kl: float | None = None
    """KL divergence of the logits from eager's, nats; None without logits."""
    top1: float | None = None
    memory: int | None = None
    """Bytes of the weights and of the peak of a call."""
    least_memory: int | None = None
    """The least bytes of its weights, by the plan, of a candidate that was not tried because they are too many."""
    size: int | None = None
    """Bytes of the weights."""
    is_within: bool = False
    """Whether it was measured and meets all bounds."""
    is_on_front: bool = False
    """Whether no other candidate is both faster and nearer to eager."""

    @property
    def loss(self) -> float | None:
        """The distance to eager that the plot shows: the KL divergence, or without logits the error; 0 for rounding."""
        name, value = ("error", self.error) if self.kl is None else ("kl", self.kl)
        return value if value is None or value > ROUNDING[name] else 0.0


class SearchReport(ReportFacts):
    """A whole search."""

    objective: str
    bounds: SearchBounds
    budget: float
    """The seconds that were given."""
    seconds: float
    """The seconds that were taken, but for writing the artifact."""
    end: End
    machine: str
    call: str
    """What was timed: `call 1 x 128`, `training step 1 x 128` or `generation 8 x 128 + 128 tokens`."""
    kept: int = 0
    """How many candidates' results are, in part or whole, those of an earlier search."""
    winner: str
    why: str
    """One sentence."""
    candidates: tuple[SearchCandidate, ...]

    @property
    def best(self) -> SearchCandidate | None:
        """The winner; None where nobody won."""
        return next((one for one in self.candidates if one.name == self.winner), None)

    @property
    def measured(self) -> tuple[SearchCandidate, ...]:
        """The candidates that were measured."""
        return tuple(one for one in self.candidates if one.state == "measured")

    @property
    def loss_name(self) -> str:
        """The name of the distance to eager that the plot shows."""
        has_logits = any(one.kl is not None for one in self.measured)
        return "KL divergence from eager, nats" if has_logits else "relative error, compared with eager"

    @property
    def ended(self) -> str:
        """The end of the search, in words."""
        return ENDS[self.end]
