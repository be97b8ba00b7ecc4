"""The plot of a search: speed against loss, the size of a mark by memory, and the Pareto front as a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.axes import Axis, Tick, linear, logarithmic
from thunder_core.workflow.report.plots import WIDTH
from thunder_core.workflow.report.search import ROUNDING, SearchCandidate, SearchReport

LEFT, TOP, BOTTOM = 66.0, 30.0, 250.0
EXACT = 34.0  # from the end of the logarithmic axis down to the line of what differs by rounding alone
LEAST, MOST = 5.0, 15.0  # radii
NEAR = 17.0  # between two numbers that would be written over each other
STEP = 14.0


@dataclass(frozen=True)
class Mark:
    """A measured candidate: a circle, the interval of its speed as a line, and its number."""

    number: int
    text: str
    x: float
    y: float
    low: float
    high: float
    radius: float
    number_at: float
    kind: str
    """`winner`, `eager`, `outside` for one that misses a bound, or `other`."""


@dataclass(frozen=True)
class ParetoPlot:
    """The measured candidates of a search on two axes, with the front and the bound of the loss."""

    title: str
    height: float
    bottom: float
    left: float
    exact: float
    """Where the line of what differs by rounding alone is."""
    label: str
    """What the axis of the loss shows."""
    marks: tuple[Mark, ...]
    front: str
    bound: float | None
    even: float
    across: tuple[Tick, ...]
    upwards: tuple[Tick, ...]


def pareto_plot(search: SearchReport) -> ParetoPlot | None:
    """The plot of a search; None where fewer than two candidates were measured."""
    rows = [row for row in search.measured if row.speed is not None]
    if len(rows) < 2:
        return None
    speeds = [end for row in rows if row.speed for end in (row.speed.low, row.speed.high)]
    across = linear([1.0, *_shown(speeds)], LEFT + MOST, WIDTH - MOST - 4, from_zero=False)
    loss = bounded_loss(search)
    least = ROUNDING["kl" if has_logits(search) else "error"]
    losses = [value for value in (*(row.loss or 0.0 for row in rows), loss or 0.0) if value > least]
    upwards = logarithmic(losses or [1e-5], BOTTOM - EXACT, TOP)
    marks = tuple(_marks(rows, search, across, lambda value: place_of(value, upwards, least)))
    return ParetoPlot(
        title="Speed and loss of all candidates",
        height=BOTTOM + 44,
        bottom=BOTTOM,
        left=LEFT,
        exact=BOTTOM,
        label=search.loss_name,
        marks=marks,
        front=front_path([mark for mark, row in zip(marks, rows, strict=True) if row.is_on_front]),
        bound=None if loss is None else place_of(loss, upwards, least),
        even=across(1.0),
        across=across.ticks(lambda value: f"{value:g}{number_format.TIMES}", about=6),
        upwards=upwards.ticks(lambda value: f"{value:.0e}".replace("e-0", "e-"), about=5),
    )


def _shown(speeds: Sequence[float]) -> list[float]:
    """The ends of intervals, cut where one is so wide that it would leave no room for the others."""
    usual = sorted(speeds)[len(speeds) // 2]
    return [min(max(speed, usual / 6), usual * 6) for speed in speeds]


def bounded_loss(search: SearchReport) -> float | None:
    """The bound of the loss that the plot shows; None where nobody asked for one."""
    return search.bounds.max_kl if has_logits(search) else search.bounds.max_error


def has_logits(search: SearchReport) -> bool:
    """Whether the loss that the plot shows is the KL divergence of logits."""
    return any(row.kl is not None for row in search.measured)


def place_of(loss: float | None, upwards: Axis, least: float) -> float:
    """The height of a loss; what is rounding alone, at most `least`, lies on a line of its own."""
    return BOTTOM if loss is None or loss <= least else upwards(loss)


def _marks(
    rows: Sequence[SearchCandidate], search: SearchReport, across: Axis, height: Callable[[float | None], float]
) -> Iterator[Mark]:
    most = max((row.memory or 0 for row in rows), default=0)
    placed: list[tuple[float, float]] = []
    for row in rows:
        assert row.speed is not None
        x, y = across(row.speed.value), height(row.loss)
        radius = MOST * sqrt((row.memory or 0) / most) if most else LEAST
        radius = round(max(LEAST, radius), 1)
        number_at = _free_place(x, y - radius - 4, placed)
        placed.append((x, number_at))
        yield Mark(
            row.number,
            _text(row),
            x,
            y,
            across(row.speed.low),
            across(row.speed.high),
            radius,
            number_at,
            kind_of(row, search),
        )


def _free_place(x: float, y: float, placed: Sequence[tuple[float, float]]) -> float:
    """The height at which a number can be written: above those that are written already."""
    while any(abs(x - other_x) < NEAR and abs(y - other_y) < STEP - 1 for other_x, other_y in placed):
        y -= STEP
    return round(y, 1)


def kind_of(row: SearchCandidate, search: SearchReport) -> str:
    """The kind of a mark, which the style sheet colours."""
    if row.name == search.winner:
        return "winner"
    if not row.is_within:
        return "outside"
    return "eager" if row.rank == 0 else "other"


def _text(row: SearchCandidate) -> str:
    assert row.speed is not None
    loss = "" if row.loss is None else f", loss {number_format.error(row.loss)}"
    memory = "" if row.memory is None else f", {number_format.size(row.memory)}"
    return f"{row.name}: {number_format.times(row.speed.value)}{loss}{memory}"


def front_path(marks: Sequence[Mark]) -> str:
    """The line from mark to mark of the front, from the slowest to the fastest."""
    ordered = sorted(marks, key=lambda mark: mark.x)
    return " L".join(f"{mark.x},{mark.y}" for mark in ordered) if len(ordered) > 1 else ""
