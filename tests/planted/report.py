"""The outcomes of planted faults as a table by kind and family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.planted.plant import Outcome

HEADER = f"{'kind':<20}{'family':<10}{'planted':>8}{'change':>8}{'caught':>8}{'named':>8}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The number of faults by kind and family: planted, changing a value, found and named."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.kind, outcome.family), []).append(outcome)
    rows = [row(kind, family, group) for (kind, family), group in sorted(groups.items())]
    return "\n".join([HEADER, *rows, row("all", "", outcomes)])


def row(kind: str, family: str, outcomes: Iterable[Outcome]) -> str:
    """One row of the table."""
    outcomes = list(outcomes)
    counted = [outcome for outcome in outcomes if outcome.counts]
    numbers = (
        len(outcomes),
        len(counted),
        sum(outcome.caught for outcome in counted),
        sum(outcome.named for outcome in counted),
    )
    return f"{kind:<20}{family:<10}" + "".join(f"{number:>8}" for number in numbers)


def missed_faults(outcomes: Iterable[Outcome]) -> str:
    """The faults that were not found, and those that were not named."""
    counted = [outcome for outcome in outcomes if outcome.counts and not outcome.named]
    return "\n".join(f"{'misnamed' if outcome.caught else 'MISSED'}: {outcome}" for outcome in counted)
