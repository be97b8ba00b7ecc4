"""The timeline of a call on several ranks: for each rank a row of computation and waits, and rows of collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thunder_core.foundation.time_format import format_time, time_unit
from thunder_core.workflow.benchmark.rank_times import CollectiveTimes, RankTimes
from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.axes import Axis, Tick
from thunder_core.workflow.report.plots import COLOURS, LAST_LABEL

WIDTH = 1060
LEFT_MARGIN = 108
LANE_HEIGHT = 16  # the height of a row
RANK_GAP = 14  # the gap between two ranks
MAX_RANKS = 8
WAIT = "wait"  # the style of a mark for a wait; the other styles are c0, c1 and so on
FIRST_COLOUR = 1  # the colour of the first kind of collective; computation has colour 0


@dataclass(frozen=True)
class TimelineMark:
    """A mark from a start to an end, with the style of its kind and a text."""

    style: str
    text: str
    x: float
    y: float
    width: float


@dataclass(frozen=True)
class Label:
    """The label of a row."""

    text: str
    y: float
    strong: bool = False


@dataclass(frozen=True)
class Timeline:
    """The rows of all ranks on one axis of time; `legend` has each kind of collective with its style."""

    title: str
    height: float
    unit: str
    labels: tuple[Label, ...]
    marks: tuple[TimelineMark, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    rest: str


@dataclass(frozen=True)
class CollectiveRow:
    """A collective as a row of a table: the seconds of computation of the first rank that overlap with it, and the
    longest wait of all ranks, with the rank that waits longest.
    """

    times: CollectiveTimes
    overlapped_seconds: float
    waiting: float
    rank: int


def timeline(ranks: Sequence[RankTimes]) -> Timeline:
    """Return the timeline of the first `MAX_RANKS` ranks."""
    shown = ranks[:MAX_RANKS]
    seconds_per_unit, unit = time_unit(max(rank.seconds for rank in shown))
    time_axis = Axis(0.0, max(rank.seconds for rank in shown) / seconds_per_unit, LEFT_MARGIN, WIDTH - LAST_LABEL)
    styles = styles_of(shown)
    labels: list[Label] = []
    marks: list[TimelineMark] = []
    top = 4.0
    for rank in shown:
        lanes = lanes_of(rank.collectives)
        labels.append(Label(f"rank {rank.rank}", top + 11, strong=True))
        labels += (Label("in flight", top + (number + 1) * LANE_HEIGHT + 11) for number in range(min(1, len(lanes))))
        marks += _marks(rank, lanes, styles, _MarkPlacement(time_axis, seconds_per_unit, top))
        top += (len(lanes) + 1) * LANE_HEIGHT + RANK_GAP
    hidden = len(ranks) - len(shown)
    return Timeline(
        title="Computation and communication of each rank",
        height=top + 24,
        unit=unit,
        labels=tuple(labels),
        marks=tuple(marks),
        ticks=time_axis.ticks(lambda value: f"{value:g}", target_count=8),
        legend=tuple(styles.items()),
        rest=f"and {hidden} more rank{'' if hidden == 1 else 's'}" if hidden else "",
    )


def collective_rows(ranks: Sequence[RankTimes]) -> tuple[CollectiveRow, ...]:
    """Return the collectives of the first rank, each with the longest wait of the ranks that also call it."""
    return tuple(_row(number, times, ranks) for number, times in enumerate(ranks[0].collectives)) if ranks else ()


def _row(number: int, times: CollectiveTimes, ranks: Sequence[RankTimes]) -> CollectiveRow:
    same = [rank for rank in ranks if number < len(rank.collectives) and rank.collectives[number].kind == times.kind]
    waits = [(rank.collectives[number].end - rank.collectives[number].wait, -rank.rank) for rank in same]
    waiting, negative_rank = max(waits)  # the lowest rank of equal waits
    return CollectiveRow(times, ranks[0].seconds_computed_during(times), waiting, -negative_rank)


def styles_of(ranks: Iterable[RankTimes]) -> dict[str, str]:
    """Return the style of each kind of collective, in the order of their first starts, rank by rank."""
    kinds = dict.fromkeys(collective.kind for rank in ranks for collective in rank.collectives)
    return {kind: f"c{min(number, COLOURS - 1)}" for number, kind in enumerate(kinds, start=FIRST_COLOUR)}


def lanes_of(collectives: Iterable[CollectiveTimes]) -> list[list[CollectiveTimes]]:
    """Divide collectives into lanes, so that the collectives of a lane do not run at the same time."""
    lanes: list[list[CollectiveTimes]] = []
    for collective in sorted(collectives, key=lambda times: times.start):
        free = next((lane for lane in lanes if lane[-1].end <= collective.start), None)
        if free is None:
            lanes.append([collective])
        else:
            free.append(collective)
    return lanes


@dataclass(frozen=True)
class _MarkPlacement:
    """The axis of times and its unit in seconds, and the top of the rows of a rank, by which its marks are placed."""

    time_axis: Axis
    seconds_per_unit: float
    top: float

    def mark(self, style: str, text: str, lane: int, start: float, end: float) -> TimelineMark:
        """Return a mark in a row."""
        left, right = (self.time_axis(time / self.seconds_per_unit) for time in (start, end))
        return TimelineMark(style, text, left, self.top + lane * LANE_HEIGHT, round(max(right - left, 0.6), 2))


def _marks(
    rank: RankTimes, lanes: Sequence[Sequence[CollectiveTimes]], styles: dict[str, str], placement: _MarkPlacement
) -> Iterator[TimelineMark]:
    for trace in rank.traces:
        text = f"{trace.name}: {format_time(trace.end - trace.start)}"
        yield placement.mark(f"c{FIRST_COLOUR - 1}", text, 0, trace.start, trace.end)
    for collective in rank.collectives:
        yield placement.mark(WAIT, f"wait for {in_words(rank, collective)}", 0, collective.wait, collective.end)
    for number, lane in enumerate(lanes, start=1):
        for collective in lane:
            text = in_words(rank, collective)
            yield placement.mark(styles[collective.kind], text, number, collective.start, collective.end)


def in_words(rank: RankTimes, collective: CollectiveTimes) -> str:
    """Describe a collective: its kind, size, group, line and start, the overlapping computation, and the wait."""
    return (
        f"{collective.kind}, {number_format.size(collective.bytes)} in group {collective.group}, "
        f"line {collective.line} of the {collective.trace}: starts at {format_time(collective.start)}, "
        f"{format_time(rank.seconds_computed_during(collective))} of overlapping computation, "
        f"wait of {format_time(collective.end - collective.wait)}"
    )
