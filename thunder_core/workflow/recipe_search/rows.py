"""The rows of a search's table: every candidate with its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from thunder_core.workflow.recipe_search.bounds import CandidateCost, misses
from thunder_core.workflow.recipe_search.candidate import Candidate, ExcludedCandidate
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.report.search import SearchBounds, SearchCandidate

FEW_LAYERS = 3
NOT_TRIED = "the search ended before its trial"


def rows_of(
    candidates: Sequence[Candidate],
    excluded: Sequence[ExcludedCandidate],
    results: Mapping[Candidate, TrialFacts | TrialRefusal],
    bounds: SearchBounds,
) -> tuple[SearchCandidate, ...]:
    """Return the rows in the order of trials, then the candidates that do not apply. Mark rows on the Pareto front."""
    rows = [*_tried_rows(candidates, results, bounds)]
    rows += [
        _named_row(
            exclusion.candidate,
            len(rows) + index,
            state="not applicable",
            reason=exclusion.reason,
            least_memory=exclusion.least_memory,
        )
        for index, exclusion in enumerate(excluded, start=1)
    ]
    front = pareto_front(rows)
    return tuple(row.model_copy(update={"is_on_front": row.number in front}) for row in rows)


def _named_row(candidate: Candidate, number: int, **facts: object) -> SearchCandidate:
    settings = {
        "number": number,
        "name": candidate.name,
        "recipes": () if candidate.is_eager else candidate.recipes,
        "settings": candidate.settings,
        "rank": candidate.rank,
    }
    return SearchCandidate.model_validate({**settings, **facts})


def _tried_rows(
    candidates: Sequence[Candidate], results: Mapping[Candidate, TrialFacts | TrialRefusal], bounds: SearchBounds
) -> Iterator[SearchCandidate]:
    for number, candidate in enumerate(candidates, start=1):
        result = results.get(candidate)
        if result is None:
            yield _named_row(candidate, number, state="not tried", reason=NOT_TRIED)
        elif isinstance(result, TrialRefusal):
            state = "not tried" if result.timed_out else "refused"
            yield _named_row(candidate, number, state=state, reason=result.reason)
        else:
            yield _measured_row(candidate, number, result, bounds)


def _measured_row(candidate: Candidate, number: int, facts: TrialFacts, bounds: SearchBounds) -> SearchCandidate:
    missed = [miss.words for miss in misses(bounds, CandidateCost(facts.kl, facts.top1, facts.error, facts.memory))]
    skipped = [skipped_layers_in_words(facts.skipped)] if facts.skipped else []
    return _named_row(
        candidate,
        number,
        state="measured",
        reason="; ".join(missed or skipped),
        speed=facts.speed,
        seconds=facts.measured.median,
        rounds=len(facts.candidate_times),
        verdict=facts.verdict,
        error=facts.error,
        kl=facts.kl,
        top1=facts.top1,
        memory=facts.memory,
        size=facts.size,
        is_within=not missed,
    )


def skipped_layers_in_words(layers: Sequence[str]) -> str:
    """Describe the layers that were left in float: the names of a few layers, or the number of many."""
    if len(layers) <= FEW_LAYERS:
        return f"kept in float: {', '.join(layers)}"
    return f"{len(layers)} layers kept in float, {layers[0]} first"


def pareto_front(rows: Sequence[SearchCandidate]) -> set[int]:
    """Return the numbers of the rows on the Pareto front: rows that no other row beats in both speed and loss."""
    points = {row.number: (row.speed.value, -(row.loss or 0.0)) for row in rows if row.speed is not None}
    return {
        number
        for number, point in points.items()
        if not any(rival != point and rival[0] >= point[0] and rival[1] >= point[1] for rival in points.values())
    }
