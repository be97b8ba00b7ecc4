"""The plots of a report as geometry. The templates and the style sheet define their look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from thunder_core.foundation.time_format import format_time, time_unit
from thunder_core.workflow.benchmark.generation import GeneratedTokens, GenerationBenchmark
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, size_in_words
from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.axes import Axis, Tick, linear, logarithmic
from thunder_core.workflow.report.contents import ExecutorShare, MemoryPoint, OperationCount, StageTime
from thunder_core.workflow.validation.report import OutputReport, QuantizationReport, ValidationReport

WIDTH = 520
LETTER_WIDTH = 6.6  # the width of a letter of a label
MAX_LABEL_LETTERS = 31  # the largest number of letters of a label
MAX_PATH_LETTERS = 43  # the largest number of letters of a parameter's name, which needs its layer and its end
ROW_HEIGHT = 24  # the height of a row with a bar or a dumbbell
STRIP_HEIGHT = 56  # the height of a strip
MAX_ROWS = 12
MAX_TIME_FACTOR = 4  # times above this multiple of the slowest contender's median are plotted at the edge
COLOURS = 7  # the colours for executors in the style sheet; the other executors share the last colour
LAST_LABEL = 28  # half the width of the last label of an axis, a number with its unit


@dataclass(frozen=True)
class Bar:
    """A labelled bar, with a text at its end."""

    label: str
    full_label: str
    text: str
    y: float
    x: float
    width: float


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero."""

    title: str
    height: float
    bars: tuple[Bar, ...]
    rest: str


@dataclass(frozen=True)
class BarSegment:
    """A segment of a divided bar."""

    label: str
    text: str
    colour: int
    x: float
    width: float


@dataclass(frozen=True)
class Shares:
    """Bars of equal length, each divided among the same executors."""

    title: str
    height: float
    rows: tuple[tuple[str, float, tuple[BarSegment, ...]], ...]


@dataclass(frozen=True)
class Strip:
    """All times of a candidate: a dot for each, a box for the interquartile range, and a line at the median."""

    label: str
    text: str
    y: float
    dots: tuple[tuple[float, float], ...]
    box: tuple[float, float]
    median: float


@dataclass(frozen=True)
class Strips:
    """The times of every candidate on one axis."""

    title: str
    height: float
    unit: str
    strips: tuple[Strip, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Dumbbell:
    """The largest errors of one output: eager's error, the optimized model's error, and the allowed error."""

    label: str
    full_label: str
    text: str
    y: float
    eager: float
    optimized: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Dumbbells:
    """Outputs on one logarithmic axis."""

    title: str
    height: float
    rows: tuple[Dumbbell, ...]
    ticks: tuple[Tick, ...]
    rest: str


@dataclass(frozen=True)
class Curve:
    """Memory over the bound symbols of a trace: allocated memory as an area, peaks within bound symbols as a line.

    `begins` are the bound symbols at which another trace begins, with the name of that trace.
    """

    title: str
    height: float
    bottom: float
    line: str
    area: str
    peak: tuple[float, float, str, str]
    across: tuple[Tick, ...]
    upwards: tuple[Tick, ...]
    begins: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class TokenLine:
    """The time of each token of one contender, as a path; `text` is written next to its name."""

    label: str
    text: str
    colour: int
    path: str


@dataclass(frozen=True)
class TokenLines:
    """The times of the tokens after the first, in order, of all contenders on one pair of axes."""

    title: str
    height: float
    bottom: float
    unit: str
    lines: tuple[TokenLine, ...]
    across: tuple[Tick, ...]
    upwards: tuple[Tick, ...]


def stage_bars(stages: Sequence[StageTime]) -> Bars:
    """Return bars of the time of each stage, in the order of the pipeline."""
    return _bars("Time of each stage", [(s.name, s.seconds, format_time(s.seconds)) for s in stages], "")


def operation_bars(operations: Sequence[OperationCount]) -> Bars:
    """Return bars of the most frequent operations."""
    ranked = sorted(operations, key=lambda operation: -operation.count)
    hidden = ranked[MAX_ROWS:]
    rest = f"and {len(hidden)} more, with {sum(o.count for o in hidden)} calls in total" if hidden else ""
    return _bars("Calls of each operation", [(o.name, o.count, str(o.count)) for o in ranked[:MAX_ROWS]], rest)


def layer_errors(quantization: QuantizationReport) -> Bars:
    """Return bars of the quantized layers with the largest errors of their results."""
    layers = [(layer.name, layer.error) for layer in quantization.ranked if layer.error is not None]
    hidden = layers[MAX_ROWS:]
    rest = f"and {len(hidden)} more, at most {hidden[0][1]:.2g}" if hidden else ""
    rows = [(name, error, f"{error:.2g}") for name, error in layers[:MAX_ROWS]]
    return _bars("Error of each quantized layer", rows, rest)


def _bars(title: str, rows: Sequence[tuple[str, float, str]], rest: str) -> Bars:
    left_margin = label_width(label for label, _, _ in rows)
    axis = linear((value for _, value, _ in rows), 0, WIDTH - left_margin - 70, from_zero=True)
    bars = [
        Bar(
            number_format.shorten(label, MAX_LABEL_LETTERS),
            label,
            text,
            4 + number * ROW_HEIGHT,
            left_margin,
            max(1.5, axis(value)),
        )
        for number, (label, value, text) in enumerate(rows)
    ]
    return Bars(title, len(rows) * ROW_HEIGHT + 8, tuple(bars), rest)


def label_width(labels: Iterable[str], max_letters: int = MAX_LABEL_LETTERS) -> float:
    """Return the width of the longest label with a gap; labels are shortened to `max_letters` letters."""
    longest = max((len(number_format.shorten(label, max_letters)) for label in labels), default=0)
    return longest * LETTER_WIDTH + 12


def executor_shares(executors: Sequence[ExecutorShare]) -> Shares:
    """Return divided bars: the operations of each executor, and its time if measured; in training also the backward."""
    trains = any(e.backward for e in executors)
    of_forward = " of the forward" if trains else ""
    measured: list[tuple[str, list[float | None], Callable[[float], str]]] = [
        (f"operations{of_forward}", [e.operations for e in executors], str),
        (f"time{of_forward}", [e.time_share for e in executors], number_format.percent),
        ("operations of the backward", [e.backward if trains else None for e in executors], str),
        ("time of the backward", [e.backward_share for e in executors], number_format.percent),
    ]
    rows = [row for row in measured if any(value is not None for value in row[1])]
    bars = []
    for number, (name, values, text) in enumerate(rows):
        parts = [(e.executor, value or 0.0, text(value or 0)) for e, value in zip(executors, values, strict=True)]
        bars.append((name, 22.0 + number * 58, _segments(parts)))
    return Shares("Operations by executor", len(rows) * 58 + 4, tuple(bars))


def _segments(parts: Sequence[tuple[str, float, str]]) -> tuple[BarSegment, ...]:
    total = sum(value for _, value, _ in parts) or 1.0
    edges = [0.0, *accumulate(value / total * WIDTH for _, value, _ in parts)]
    placed = zip(parts, pairwise(edges), strict=True)
    return tuple(
        BarSegment(label, text, min(number, COLOURS - 1), round(begin, 2), round(end - begin, 2))
        for number, ((label, _, text), (begin, end)) in enumerate(placed)
        if end > begin
    )


def time_strips(benchmark: BenchmarkReport) -> Strips:
    """Return the distribution of the times of each candidate."""
    left_margin = label_width(text for c in benchmark.candidates for text in (c.name, _median_text(c))) + 8
    unit, name = time_unit(benchmark.first.median)
    shown = [value for c in benchmark.candidates for value in c.seconds if value <= _fence(c)]
    axis = linear((value / unit for value in shown), left_margin, WIDTH - LAST_LABEL, from_zero=False)
    strips = tuple(_strip(c, axis, unit, 10 + STRIP_HEIGHT * row) for row, c in enumerate(benchmark.candidates))
    return Strips(
        f"Time per {benchmark.call}", len(strips) * STRIP_HEIGHT + 32, name, strips, axis.ticks(lambda v: f"{v:g}")
    )


def _fence(candidate: BenchmarkCandidate) -> float:
    """Return the largest plotted time: three interquartile ranges above the third quartile."""
    return candidate.third_quartile + 3 * candidate.spread


def _median_text(candidate: BenchmarkCandidate) -> str:
    beyond = sum(value > _fence(candidate) for value in candidate.seconds)
    return format_time(candidate.median) + (f" (+{beyond} slower)" if beyond else "")


def _strip(candidate: BenchmarkCandidate, axis: Axis, unit: float, y: float) -> Strip:
    fence = _fence(candidate)
    # a golden-ratio sequence spreads the dots evenly and reproducibly
    dots = [
        (axis(value / unit), round(y + 4 + (number * 0.618034) % 1 * 28, 2))
        for number, value in enumerate(candidate.seconds)
        if value <= fence
    ]
    return Strip(
        label=number_format.shorten(candidate.name, MAX_LABEL_LETTERS),
        text=_median_text(candidate),
        y=y,
        dots=tuple(dots),
        box=(axis(candidate.first_quartile / unit), axis(candidate.third_quartile / unit)),
        median=axis(candidate.median / unit),
    )


def error_dumbbells(validation: ValidationReport) -> Dumbbells:
    """Return the largest error of each output and eager's own error, the worst first."""
    shown, hidden = validation.ranked[:MAX_ROWS], validation.ranked[MAX_ROWS:]
    allowed = {o.name: validation.allowed_error(o) for o in shown}
    left_margin = label_width((o.name for o in shown), MAX_PATH_LETTERS)
    values = [value for o in shown for value in (o.optimized.maximum, o.eager.maximum, allowed[o.name])]
    axis = logarithmic(values, left_margin, WIDTH - 12)
    rows = tuple(_dumbbell(o, axis, allowed[o.name], 12 + ROW_HEIGHT * number) for number, o in enumerate(shown))
    rest = f"and {len(hidden)} more, with smaller errors relative to their tolerance" if hidden else ""
    return Dumbbells(
        "Largest error of each output", len(rows) * ROW_HEIGHT + 30, rows, axis.ticks(lambda v: f"{v:.0e}"), rest
    )


def _dumbbell(output: OutputReport, axis: Axis, allowed: float, y: float) -> Dumbbell:
    own_error, eager_error = output.optimized.maximum, output.eager.maximum
    return Dumbbell(
        label=number_format.shorten(output.name, MAX_PATH_LETTERS),
        full_label=output.name,
        text=", ".join(
            f"{whose}{number_format.error(value)}"
            for whose, value in (("", own_error), ("eager ", eager_error), ("allowed ", allowed))
        ),
        y=y,
        eager=axis(eager_error),
        optimized=axis(own_error),
        allowed=axis(allowed),
        passed=output.passed,
    )


def memory_curve(points: Sequence[MemoryPoint]) -> Curve:
    """Return the allocated bytes after each bound symbol and while it runs, trace after trace."""
    left, top, bottom = 62.0, 26.0, 170.0
    across = Axis(1, max(len(points), 2), left, WIDTH - 10)
    upwards = linear((max(p.bytes, p.peak) for p in points), bottom, top, from_zero=True)
    peak_index, peak = max(enumerate(points, start=1), key=lambda pair: max(pair[1].bytes, pair[1].peak))
    highest = max(peak.bytes, peak.peak)
    label = f"peak {number_format.size(highest)} {'in' if peak.peak else 'after'} line {peak.line}"
    label += f" of the {peak.trace}" if len({point.trace for point in points}) > 1 else ""
    return Curve(
        title="Memory over the lines of the trace",
        height=bottom + 26,
        bottom=bottom,
        line=_steps([upwards(max(point.bytes, point.peak)) for point in points], across),
        area=f"{_steps([upwards(point.bytes) for point in points], across)}V{bottom}H{across(1)}Z",
        peak=(across(peak_index), upwards(highest), label, "end" if across(peak_index) > WIDTH * 0.6 else "start"),
        across=across.ticks(lambda v: f"{v:g}", integers_only=True),
        upwards=_byte_ticks(upwards),
        begins=tuple(
            Tick(across(number), later.trace)
            for number, (earlier, later) in enumerate(pairwise(points), start=2)
            if earlier.trace != later.trace
        ),
    )


def _steps(heights: Sequence[float], across: Axis) -> str:
    rest = "".join(f"H{across(number)}V{height}" for number, height in enumerate(heights[1:], start=2))
    return f"M{across(1)},{heights[0]}{rest}"


def token_lines(generation: GenerationBenchmark) -> TokenLines:
    """Return lines of the median time of each token after the first; they show the growing cache and stalls."""
    left, top, bottom = 44.0, 12.0, 170.0
    latest = [median(text.seconds[1:] or text.seconds) for text in generation.texts]
    unit, name = time_unit(max(latest))
    times = (
        min(value, MAX_TIME_FACTOR * max(latest)) / unit for text in generation.texts for value in text.seconds[1:]
    )
    across = Axis(2, max(generation.new_tokens, 3), left, WIDTH - 10)
    upwards = linear(times, bottom, top, from_zero=True)
    return TokenLines(
        title=f"Time of each token, {size_in_words(generation.configuration)}",
        height=bottom + 26,
        bottom=bottom,
        unit=name,
        lines=tuple(
            _token_line(text, min(number, COLOURS - 1), across, upwards, unit)
            for number, text in enumerate(generation.texts)
        ),
        across=across.ticks(lambda v: f"{v:g}", integers_only=True),
        upwards=upwards.ticks(lambda v: f"{v:g}", target_count=4),
    )


def _token_line(text: GeneratedTokens, colour: int, across: Axis, upwards: Axis, unit: float) -> TokenLine:
    first, *following = text.seconds
    points = " L".join(f"{across(index)},{upwards(value / unit)}" for index, value in enumerate(following, start=2))
    times = f"first after {format_time(first)}"
    if following:
        times += f", then {format_time(median(following))} per token"
    return TokenLine(text.name, times, colour, f"M{points}" if points else "")


def _byte_ticks(axis: Axis) -> tuple[Tick, ...]:
    unit = next((unit for unit, _ in number_format.BYTE_UNITS if axis.high >= unit), 1)
    inner = Axis(axis.low / unit, axis.high / unit, axis.begin, axis.end)
    return inner.ticks(lambda v: number_format.size(v * unit) if v else "0", target_count=4)
