"""Describe the result of a search in one sentence: why the winner won, or which candidate misses the bounds least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder_core.foundation.errors import BoundMissed
from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.verdict import MIN_ROUNDS
from thunder_core.workflow.recipe_search.bounds import CandidateCost, MissedBound, misses
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.halving import CandidateFinding
from thunder_core.workflow.report.number_format import size, times
from thunder_core.workflow.report.search import End, SearchCandidate, SearchReport


def speed_in_words(speed: Interval) -> str:
    """Return a speed-up with its interval: `1.80x [1.78x to 1.82x]`."""
    return f"{times(speed.value)} [{times(speed.low)} to {times(speed.high)}]"


def _speed(row: SearchCandidate) -> str:
    if row.rank == 0 or row.speed is None:
        return "eager PyTorch's own speed"
    return f"{speed_in_words(row.speed)} the speed of eager PyTorch"


# The result of a candidate for each objective: in words, in short words (if shorter), and as a score to compare.
RESULT_TEXTS: Mapping[str, Callable[[SearchCandidate], str]] = {
    "latency": _speed,
    "throughput": _speed,
    "memory": lambda row: f"{size(row.memory or 0)} for weights and a call",
    "size": lambda row: f"{size(row.size or 0)} of weights",
}
SHORT_RESULT_TEXTS: Mapping[str, Callable[[SearchCandidate], str]] = dict.fromkeys(
    ("latency", "throughput"), lambda row: times(row.speed.value) if row.speed else ""
)
SCORES: Mapping[str, Callable[[SearchCandidate], float]] = {
    "latency": lambda row: row.speed.value if row.speed else 0.0,
    "throughput": lambda row: row.speed.value if row.speed else 0.0,
    "memory": lambda row: -(row.memory or 0),
    "size": lambda row: -(row.size or 0),
}


def reason_in_words(rows: Sequence[SearchCandidate], winner: Candidate, objective: str, end: End) -> str:
    """Return the reason why the winner won, in one sentence."""
    winning_row = next(row for row in rows if row.name == winner.name)
    score, figure, short = (
        SCORES[objective],
        RESULT_TEXTS[objective],
        SHORT_RESULT_TEXTS.get(objective, RESULT_TEXTS[objective]),
    )
    within = sorted((row for row in rows if row.is_within and row is not winning_row), key=score, reverse=True)
    better = [row for row in within if score(row) > score(winning_row)]
    result = f"{winning_row.name} wins with {figure(winning_row)}"
    if better:
        reason = f"{better[0].name} ({short(better[0])}) {_reason_not_chosen(better[0], winning_row)}"
    elif within:
        reason = f"the next one within the bounds is {within[0].name} ({short(within[0])})"
    elif any(row.state == "measured" and row is not winning_row for row in rows):
        reason = "no other candidate is within the bounds"
    else:
        reason = "no other candidate was measured"
    ended = {
        "decided": "",
        "out of time": "; the search reached its time limit",
        "interrupted": "; Ctrl-C ended the search",
    }
    return f"{result}: {reason}{ended[end]}."


def _reason_not_chosen(row: SearchCandidate, winning_row: SearchCandidate) -> str:
    """Return the reason why a candidate with a better score than the winner did not win."""
    if _is_settled(row):
        return f"is not distinguishable from {winning_row.name}, which is simpler"
    return _reason_not_settled(row)


def _is_settled(row: SearchCandidate) -> bool:
    return row.speed is not None and CandidateFinding(row.speed, row.rounds, exact=row.rank == 0).is_settled


def _reason_not_settled(row: SearchCandidate) -> str:
    if row.rounds < MIN_ROUNDS:
        return f"has too few rounds ({row.rounds}) for a comparison"
    return "has a speed that varies too much"


def bound_error(report: SearchReport) -> BoundMissed:
    """Return the error for a search without a winner: the nearest candidate, and by how much it misses a bound."""
    estimated = [row for row in report.candidates if row.least_memory is not None]
    nearest = min((*report.measured, *estimated), key=lambda row: _largest_miss(report, row).factor, default=None)
    if nearest is None:
        what = "no candidate could be measured"
    else:
        what = f"the nearest is {nearest.name}: {_largest_miss(report, nearest).words}"
    error = BoundMissed(
        f"no candidate is within the bounds; {what}; nothing was written",
        fix="relax the bounds, or use a smaller model; --json reports every candidate",
    )
    error.report = report
    return error


def _largest_miss(report: SearchReport, row: SearchCandidate) -> MissedBound:
    """Return the largest miss of a candidate's bounds; without a miss, the speed itself could not be compared."""
    if row.least_memory is not None:
        factor = row.least_memory / (report.bounds.max_memory or 1)
        return MissedBound(f"{row.reason}, {times(factor)} as much", factor)
    all_misses = misses(report.bounds, CandidateCost(row.kl, row.top1, row.error, row.memory))
    return max(all_misses, key=lambda miss: miss.factor, default=MissedBound(f"it {_reason_not_settled(row)}", 1.0))
