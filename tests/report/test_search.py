"""The search in a report: the plot as geometry, and the pages."""

from __future__ import annotations

from itertools import combinations

import pytest

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.report import (
    SearchBounds,
    SearchCandidate,
    SearchReport,
    render_html,
    render_markdown,
    render_search,
    render_search_markdown,
)
from thunder_core.workflow.report.search_plot import BOTTOM, LABEL_HEIGHT, MAX_RADIUS, MIN_LABEL_DISTANCE, pareto_plot


def candidate(number: int, name: str, speed: float, kl: float | None, memory: int, **others: object) -> SearchCandidate:
    interval = Interval(value=speed, low=speed * 0.95, high=speed * 1.05)
    stated = {"rank": number - 1, "state": "measured", "seconds": 0.01 / speed, "rounds": 20, "is_within": True}
    facts = {"speed": interval, "kl": kl, "error": kl, "memory": memory, "size": memory // 2, "verdict": "faster"}
    return SearchCandidate.model_validate({"number": number, "name": name, **stated, **facts, **others})


ROWS = (
    candidate(1, "eager", 1.0, 0.0, 400, verdict=""),
    candidate(2, "default", 1.5, 1e-15, 400, is_on_front=True),
    candidate(3, "default + <int8>", 2.0, 1e-4, 100, is_on_front=True),
    candidate(4, "default + int4", 2.5, 0.1, 50, is_within=False, reason="its KL divergence is 0.1 nats"),
    SearchCandidate(number=5, name="default + fp8", rank=4, state="not applicable", reason="no GPU | here"),
)


@pytest.fixture
def search() -> SearchReport:
    return SearchReport(
        objective="latency",
        bounds=SearchBounds(max_kl=1e-2, max_memory=8 << 30),
        budget=600,
        seconds=300,
        end="decided",
        machine="a machine",
        call="call 1 x 8",
        kept=2,
        winner="default + <int8>",
        why="default + <int8> wins.",
        candidates=ROWS,
    )


def test_marks_lie_where_speed_loss_and_memory_say(search):
    plot = pareto_plot(search)
    assert plot is not None
    eager, default, int8, int4 = plot.marks
    assert eager.x == plot.eager_speed_x < default.x < int8.x < int4.x
    assert eager.y == default.y == BOTTOM > int8.y > plot.bound > int4.y
    assert (eager.radius, int8.radius) == (MAX_RADIUS, MAX_RADIUS / 2)
    assert [mark.kind for mark in plot.marks] == ["eager", "other", "winner", "outside"]
    assert all(mark.low < mark.x < mark.high for mark in plot.marks)
    assert plot.front == f"{default.x},{default.y} L{int8.x},{int8.y}"


def test_numbers_of_near_marks_are_not_written_over_each_other(search):
    near = tuple(candidate(n, f"c{n}", 1.0 + n / 500, 0.0, 400) for n in range(1, 6))
    plot = pareto_plot(search.model_copy(update={"candidates": near}))
    assert plot is not None
    for mark, neighbour in combinations(plot.marks, 2):
        assert (
            abs(mark.x - neighbour.x) >= MIN_LABEL_DISTANCE
            or abs(mark.number_y - neighbour.number_y) >= LABEL_HEIGHT - 1
        )


def test_an_interval_that_is_very_wide_leaves_room_for_the_others(search):
    wild = ROWS[1].model_copy(update={"number": 6, "speed": Interval(value=1.2, low=0.01, high=900)})
    plot = pareto_plot(search.model_copy(update={"candidates": (*ROWS, wild)}))
    assert plot is not None
    assert plot.marks[2].x - plot.marks[0].x > 20


def test_marks_of_fast_candidates_have_their_own_positions(search):
    rows = tuple(candidate(n, f"c{n}", speed, 0.0, 400) for n, speed in enumerate((1.0, 1.1, 1.0, 9.0, 12.0), 1))
    plot = pareto_plot(search.model_copy(update={"candidates": rows}))
    assert plot is not None
    assert plot.marks[4].x - plot.marks[3].x > 20


def test_candidates_without_a_loss_have_no_mark(search):
    untested = tuple(row.model_copy(update={"kl": None, "error": None}) for row in ROWS[1:3])
    assert pareto_plot(search.model_copy(update={"candidates": (*untested, ROWS[0])})) is None
    plot = pareto_plot(search.model_copy(update={"candidates": (*ROWS[:2], untested[1])}))
    assert plot is not None
    assert [mark.number for mark in plot.marks] == [1, 2]


def test_without_logits_the_error_is_shown_and_with_one_candidate_nothing(search):
    rows = tuple(row.model_copy(update={"kl": None}) for row in ROWS)
    plot = pareto_plot(search.model_copy(update={"candidates": rows}))
    assert plot is not None
    assert "relative error" in plot.label
    assert plot.bound is None
    assert pareto_plot(search.model_copy(update={"candidates": ROWS[:1]})) is None


def test_pages_have_every_candidate_escaped(search, bare):
    report = bare.model_copy(update={"search": search})
    for page in (render_html(report), render_search(search, model="llama")):
        assert "default + &lt;int8&gt; wins." in page
        assert "KL divergence at most 0.01 nats; memory at most 8.00 GiB" in page
        assert "no GPU | here" in page
        assert "<script" not in page
    for text in (render_markdown(report), render_search_markdown(search)):
        assert r"no GPU \| here" in text
        assert "2 results reused from an earlier search" in text
    assert type(report).model_validate_json(report.model_dump_json()) == report


def test_a_loss_that_is_nan_is_infinite_and_not_rounding():
    assert candidate(1, "default", 2.0, float("nan"), 100).loss == float("inf")
    assert candidate(1, "default", 2.0, 1e-12, 100).loss == 0


def test_a_search_whose_candidates_were_all_measured_has_no_empty_table(search):
    measured = search.model_copy(update={"candidates": ROWS[:4]})
    assert "| # | candidate | state | reason |" in render_search_markdown(search)
    assert "| # | candidate | state | reason |" not in render_search_markdown(measured)
