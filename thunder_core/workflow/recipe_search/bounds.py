"""Check a candidate against the bounds of a search, and compute by how much the candidate misses a bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, isnan

from thunder_core.workflow.report.number_format import size, times
from thunder_core.workflow.report.search import SearchBounds


@dataclass(frozen=True)
class CandidateCost:
    """The loss and the memory of a candidate; None for an unknown value."""

    kl: float | None = None
    top1: float | None = None
    error: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class MissedBound:
    """A bound that a candidate misses: `words` describes the miss, and `factor` is the value divided by the bound.

    The factor is infinite if the value is unknown or NaN, or if the bound is 0.
    """

    words: str
    factor: float


def misses(bounds: SearchBounds, cost: CandidateCost) -> Iterator[MissedBound]:
    """Yield a `MissedBound` for every bound that a candidate misses. An unknown value misses its bound."""
    at_most = (
        ("KL divergence", bounds.max_kl, cost.kl, lambda value: f"{value:.3g} nats"),
        ("relative error", bounds.max_error, cost.error, lambda value: f"{value:.3g}"),
        ("memory", bounds.max_memory, cost.memory, size),
    )
    for name, bound, value, words in at_most:
        if bound is not None and (value is None or not value <= bound):
            yield _above_bound(name, bound, value, words)
    if bounds.min_top1 is not None and (cost.top1 is None or not cost.top1 >= bounds.min_top1):
        yield _below_bound("top-1 agreement", bounds.min_top1, cost.top1)


def _above_bound(name: str, bound: float, value: float | None, words: object) -> MissedBound:
    if value is None:
        return MissedBound(f"its {name} is not known", float("inf"))
    in_words = words if callable(words) else str
    factor = value / bound if bound and not isnan(value) else float("inf")
    more = f", {times(factor)} as much" if isfinite(factor) else ""
    return MissedBound(f"its {name} is {in_words(value)}, and at most {in_words(bound)} is allowed{more}", factor)


def _below_bound(name: str, bound: float, value: float | None) -> MissedBound:
    if value is None:
        return MissedBound(f"its {name} is not known", float("inf"))
    factor = (1 - value) / (1 - bound) if bound < 1 else float("inf")
    return MissedBound(f"its {name} is {value:.3%}, and at least {bound:.3%} is required", factor)
