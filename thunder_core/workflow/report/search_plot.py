"""The plot of a search: the accuracy loss of each candidate against its speed.

The size of a mark shows the memory, and a line shows the Pareto front. The accuracy loss is the KL divergence of logits
or, for models without logits, the relative error of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.axes import Axis, Tick, linear, logarithmic
from thunder_core.workflow.report.plots import WIDTH
from thunder_core.workflow.report.search import ROUNDING, SearchCandidate, SearchReport

LEFT, TOP, BOTTOM = 66.0, 30.0, 250.0  # edges of the plot; y coordinates increase downwards, as in SVG
ROUNDING_DISTANCE = 34.0  # the distance from the logarithmic axis to the line for losses within rounding error
MIN_RADIUS, MAX_RADIUS = 5.0, 15.0  # the smallest and the largest radius of a mark
MIN_LABEL_DISTANCE = 17.0  # below this horizontal distance, the numbers of two candidates at one height overlap
LABEL_HEIGHT = 14.0  # the height of a candidate's number


@dataclass(frozen=True)
class Mark:
    """A measured candidate: a circle at `x` and `y`, the interval of its speed as a line, and its number.

    `text` is the tooltip, `low` and `high` are the x coordinates of the interval, and `number_y` is the y coordinate of
    the number.
    """

    number: int
    text: str
    x: float
    y: float
    low: float
    high: float
    radius: float
    number_y: float
    kind: str
    """`winner`, `eager`, `outside` for a candidate that violates a bound, or `other`."""


@dataclass(frozen=True)
class ParetoPlot:
    """The measured candidates of a search on two axes: the speed across, and the accuracy loss upwards."""

    title: str
    height: float
    bottom: float
    left: float
    rounding_y: float
    """The y coordinate of the line for losses within rounding error."""
    label: str
    """The label of the loss axis."""
    marks: tuple[Mark, ...]
    front: str
    """The SVG path data of the Pareto front, without the initial `M`; empty for fewer than two marks."""
    bound: float | None
    """The y coordinate of the bound of the loss; None without a bound."""
    eager_speed_x: float
    """The x coordinate of the speed of eager PyTorch."""
    speed_ticks: tuple[Tick, ...]
    loss_ticks: tuple[Tick, ...]


def pareto_plot(search: SearchReport) -> ParetoPlot | None:
    """Return the plot of a search, or None if fewer than two candidates were measured.

    Candidates whose outputs were not compared, as in the search for a training step, have no mark.
    """
    rows = [row for row in search.measured if row.speed is not None and row.loss is not None]
    if len(rows) < 2:
        return None
    ends = [end for row in rows if row.speed for end in (row.speed.low, row.speed.high)]
    speeds = [1.0, *(row.speed.value for row in rows if row.speed), *_clip_intervals(ends)]
    across = linear(speeds, LEFT + MAX_RADIUS, WIDTH - MAX_RADIUS - 4, from_zero=False)
    bound = loss_bound(search)
    rounding_error = ROUNDING["kl" if has_logits(search) else "error"]
    losses = [value for value in (*(row.loss or 0.0 for row in rows), bound or 0.0) if value > rounding_error]
    upwards = logarithmic(losses or [1e-5], BOTTOM - ROUNDING_DISTANCE, TOP)
    marks = tuple(_marks(rows, search, across, lambda value: y_of_loss(value, upwards, rounding_error)))
    return ParetoPlot(
        title="Speed and loss of the measured candidates",
        height=BOTTOM + 44,
        bottom=BOTTOM,
        left=LEFT,
        rounding_y=BOTTOM,
        label=search.loss_name,
        marks=marks,
        front=front_path([mark for mark, row in zip(marks, rows, strict=True) if row.is_on_front]),
        bound=None if bound is None else y_of_loss(bound, upwards, rounding_error),
        eager_speed_x=across(1.0),
        speed_ticks=across.ticks(lambda value: f"{value:g}{number_format.TIMES}", target_count=6),
        loss_ticks=upwards.ticks(
            lambda value: f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+"), target_count=5
        ),
    )


def _clip_intervals(speeds: Sequence[float]) -> list[float]:
    """Clip the ends of intervals to between 1/6 and 6 times their median, so that the axis stays readable."""
    median = sorted(speeds)[len(speeds) // 2]
    return [min(max(speed, median / 6), median * 6) for speed in speeds]


def loss_bound(search: SearchReport) -> float | None:
    """Return the bound of the loss in the plot, or None without a bound."""
    return search.bounds.max_kl if has_logits(search) else search.bounds.max_error


def has_logits(search: SearchReport) -> bool:
    """Whether the loss in the plot is the KL divergence of logits."""
    return any(row.kl is not None for row in search.measured)


def y_of_loss(loss: float, upwards: Axis, rounding_error: float) -> float:
    """Return the y coordinate of a loss; losses up to `rounding_error` share a line below the axis."""
    return BOTTOM if loss <= rounding_error else upwards(loss)


def _marks(
    rows: Sequence[SearchCandidate], search: SearchReport, across: Axis, y_of: Callable[[float], float]
) -> Iterator[Mark]:
    """Yield the mark of each candidate. The area of a circle above the smallest one is proportional to the memory."""
    max_memory = max((row.memory or 0 for row in rows), default=0)
    placed: list[tuple[float, float]] = []
    for row in rows:
        assert row.speed is not None
        assert row.loss is not None
        x, y = across(row.speed.value), y_of(row.loss)
        radius = MAX_RADIUS * sqrt((row.memory or 0) / max_memory) if max_memory else MIN_RADIUS
        radius = round(max(MIN_RADIUS, radius), 1)
        number_y = _free_height(x, y - radius - 4, placed)
        placed.append((x, number_y))
        yield Mark(
            row.number,
            _text(row),
            x,
            y,
            across(row.speed.low),
            across(row.speed.high),
            radius,
            number_y,
            kind_of(row, search),
        )


def _free_height(x: float, y: float, placed: Sequence[tuple[float, float]]) -> float:
    """Return a y coordinate, at most `y`, at which a number at `x` overlaps none of the placed numbers."""
    while any(
        abs(x - other_x) < MIN_LABEL_DISTANCE and abs(y - other_y) < LABEL_HEIGHT - 1 for other_x, other_y in placed
    ):
        y -= LABEL_HEIGHT
    return round(y, 1)


def kind_of(row: SearchCandidate, search: SearchReport) -> str:
    """Return the kind of a mark, which selects its colour in the style sheet."""
    if row.name == search.winner:
        return "winner"
    if not row.is_within:
        return "outside"
    return "eager" if row.rank == 0 else "other"


def _text(row: SearchCandidate) -> str:
    """Return the tooltip of a candidate: its name, speed, accuracy loss and memory."""
    assert row.speed is not None
    loss = "" if row.loss is None else f", accuracy loss {number_format.error(row.loss)}"
    memory = "" if row.memory is None else f", {number_format.size(row.memory)}"
    return f"{row.name}: {number_format.times(row.speed.value)}{loss}{memory}"


def front_path(marks: Sequence[Mark]) -> str:
    """Return the SVG path data, without the initial `M`, through the marks of the front by increasing speed."""
    ordered = sorted(marks, key=lambda mark: mark.x)
    return " L".join(f"{mark.x},{mark.y}" for mark in ordered) if len(ordered) > 1 else ""
