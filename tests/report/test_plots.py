"""Plots place marks according to their values."""

from __future__ import annotations

import pytest

from tests.report.samples import output, validation
from thunder_core.workflow.report import MemoryPoint, OperationCount, Report, StageTime, plots
from thunder_core.workflow.report.axes import Axis, linear, logarithmic
from thunder_core.workflow.report.plots import WIDTH


def test_an_axis_maps_and_clips() -> None:
    axis = Axis(10, 20, 100, 200)
    assert [axis(value) for value in (0, 10, 15, 20, 99)] == [100, 100, 150, 200, 200]
    upside_down = Axis(0, 10, 200, 100)
    assert upside_down(2.5) == 175
    powers = Axis(1e-6, 1e-2, 0, 400, logarithmic=True)
    assert [powers(value) for value in (0, 1e-6, 1e-4, 1e-2)] == [0, 0, 200, 400]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 10, ["0", "2", "4", "6", "8", "10"]),
        (3.05, 5.2, ["3.5", "4", "4.5", "5"]),
        (0, 0.3, ["0", "0.1", "0.2", "0.3"]),
    ],
)
def test_ticks_are_round(low: float, high: float, texts: list[str]) -> None:
    assert [tick.text for tick in Axis(low, high, 0, 100).ticks(lambda v: f"{v:g}")] == texts


def test_powers_of_ten_are_thinned() -> None:
    ticks = Axis(1e-12, 1.0, 0, 100, logarithmic=True).ticks(lambda v: f"{v:.0e}", target_count=4)
    assert [tick.text for tick in ticks] == ["1e-12", "1e-09", "1e-06", "1e-03", "1e+00"]


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [0.0, 0.0]])
def test_axes_of_one_value_or_none_have_a_length(values: list[float]) -> None:
    axes = [linear(values, 0, 100, from_zero=from_zero) for from_zero in (False, True)]
    for axis in (*axes, logarithmic(values, 0, 100)):
        assert axis.low < axis.high
        assert 0 <= axis(5.0) <= 100


def test_bars_are_proportional_and_in_order() -> None:
    drawn = plots.stage_bars([StageTime(name="load", seconds=1.0), StageTime(name="trace", seconds=4.0)])
    load, trace = drawn.bars
    assert (load.label, load.text, trace.text) == ("load", "1.00 s", "4.00 s")
    assert trace.width == pytest.approx(4 * load.width, rel=1e-3)
    assert trace.y > load.y
    assert trace.x + trace.width < WIDTH


def test_operations_are_ranked_and_the_rest_is_counted() -> None:
    drawn = plots.operation_bars([OperationCount(name=f"op{n}", count=n) for n in range(1, 16)])
    assert [bar.label for bar in drawn.bars] == [f"op{n}" for n in range(15, 3, -1)]
    assert drawn.rest == "and 3 more, with 6 calls in total"


def test_shares_fill_the_width(full: Report) -> None:
    drawn = plots.executor_shares(full.executors)
    assert [name for name, _, _ in drawn.rows] == ["operations", "time"]
    for _, _, segments in drawn.rows:
        assert [part.width for part in segments] == [0.75 * WIDTH, 0.25 * WIDTH]
        assert segments[1].x == 0.75 * WIDTH
        assert [part.colour for part in segments] == [0, 1]
    untimed = [share.model_copy(update={"time_share": None}) for share in full.executors]
    assert [name for name, _, _ in plots.executor_shares(untimed).rows] == ["operations"]


def test_an_outlier_is_counted_and_does_not_flatten_the_rest(full: Report) -> None:
    assert full.benchmark is not None
    drawn = plots.time_strips(full.benchmark)
    eager, optimized = drawn.strips
    assert drawn.unit == "ms"
    assert (eager.text, optimized.text) == ("20.5 ms", "10.2 ms (+1 slower)")
    assert (len(eager.dots), len(optimized.dots)) == (11, 10)
    assert optimized.box[0] <= optimized.median <= optimized.box[1] < eager.box[0]
    assert all(optimized.y <= y <= optimized.y + 36 for _, y in optimized.dots)


def test_the_worst_output_comes_first_with_its_tolerance() -> None:
    found = validation(output("a", 1e-7), output("b", 1e-4, passed=False), output("c", 1e-6))
    drawn = plots.error_dumbbells(found)
    assert [(row.label, row.passed) for row in drawn.rows] == [("b", False), ("c", True), ("a", True)]
    failed, equal, better = drawn.rows
    assert failed.optimized > failed.allowed > failed.eager
    assert equal.optimized == equal.eager
    assert better.optimized < better.eager
    assert found.allowed_error(found.outputs[0]) == pytest.approx(3e-6)


def test_errors_of_zero_can_be_drawn() -> None:
    exact = output("a", 0.0)
    exact = exact.model_copy(update={"eager": exact.optimized, "scale": 0.0})
    (row,) = plots.error_dumbbells(validation(exact)).rows
    assert row.eager == row.optimized == row.allowed


def test_memory_is_a_step_for_each_line() -> None:
    points = [MemoryPoint(line=line, bytes=size) for line, size in ((1, 0), (2, 4 << 20), (3, 2 << 20))]
    drawn = plots.memory_curve(points)
    assert drawn.line == "M62.0,170.0H286.0V26.0H510.0V98.0"
    assert drawn.peak[:3] == (286.0, 26.0, "peak 4.00 MiB after line 2")
    assert drawn.upwards[0].text == "0"
    assert drawn.upwards[-1].text == "4.00 MiB"
    assert plots.memory_curve(points[:1]).line == "M62.0,170.0"


def test_a_backward_follows_its_forward_and_temporaries_show() -> None:
    rows = (("computation", 1, 2 << 20, 2 << 20), ("backward", 1, 1 << 20, 4 << 20), ("backward", 2, 0, 0))
    points = [MemoryPoint(trace=trace, line=line, bytes=held, peak=peak) for trace, line, held, peak in rows]
    drawn = plots.memory_curve(points)
    assert drawn.line == "M62.0,98.0H286.0V26.0H510.0V170.0"
    assert drawn.area == "M62.0,98.0H286.0V134.0H510.0V170.0V170.0H62.0Z"
    assert drawn.peak[:3] == (286.0, 26.0, "peak 4.00 MiB in line 1 of the backward")
    assert [(tick.at, tick.text) for tick in drawn.begins] == [(286.0, "backward")]
