"""The timeline of ranks: marks are placed by their times, and pages name each collective with its overlap."""

from __future__ import annotations

from tests.report.samples import rank_times
from tests.report.test_render import BALANCED, Tags
from thunder_core.workflow.report import Report, render_html, render_markdown
from thunder_core.workflow.report.timeline_plot import LANE_HEIGHT, MAX_RANKS, WAIT, collective_rows, timeline


def test_marks_are_placed_by_their_times() -> None:
    plot = timeline([rank_times(0, late=0.001)])
    assert plot.unit == "ms"
    forward, backward, first_wait, second_wait, gather, reduce = plot.marks
    millisecond = forward.width / 4
    assert backward.width == round(5 * millisecond, 2)
    assert first_wait.style == second_wait.style == WAIT
    assert gather.x - forward.x == millisecond
    assert gather.width == 2 * millisecond
    assert abs(reduce.width - 6.5 * millisecond) < 0.02
    assert reduce.x == forward.x + 2.5 * millisecond
    # both are in flight at 2.5 ms, so they have rows of their own below the computation
    assert [mark.y - forward.y for mark in (first_wait, gather, reduce)] == [0, LANE_HEIGHT, 2 * LANE_HEIGHT]
    assert plot.legend == (("all_gather_into_tensor", "c1"), ("all_reduce", "c2"))


def test_each_rank_has_rows_of_its_own_and_many_are_counted() -> None:
    plot = timeline([rank_times(rank) for rank in range(MAX_RANKS + 2)])
    assert [label.text for label in plot.labels if label.strong] == [f"rank {rank}" for rank in range(MAX_RANKS)]
    assert plot.rest == "and 2 more ranks"
    tops = [mark.y for mark in plot.marks if mark.text.startswith("computation")]
    assert tops == sorted(tops)
    assert len(set(tops)) == MAX_RANKS
    assert max(mark.y + LANE_HEIGHT for mark in plot.marks) < plot.height


def test_rows_name_the_rank_with_the_longest_wait() -> None:
    gather, reduce = collective_rows([rank_times(0), rank_times(1, late=0.002)])
    assert (gather.rank, round(gather.waiting, 6)) == (0, 0.001)
    assert (reduce.rank, round(reduce.waiting, 6)) == (1, 0.002)
    assert round(reduce.overlapped_seconds, 6) == 0.005  # of 5.5 ms, the rank waits for 0.5 ms for the gather


def test_pages_show_collectives_only_for_several_ranks(bare: Report) -> None:
    report = bare.model_copy(update={"ranks": (rank_times(0), rank_times(1, late=0.001))})
    page, text = render_html(report), render_markdown(report)
    assert (
        "all_reduce, 1.00 MiB in group dp, line 12 of the backward: starts at 2.50 ms, 5.00 ms of overlapping "
        "computation, wait of 1.00 ms" in page
    )
    assert (
        "| `all_reduce` | 1.00 MiB | dp | backward | 12 | 2.50 ms | 8.00 ms | 8.00 ms | 5.00 ms | 1.00 ms | 1 |" in text
    )
    assert "| 1 | 10.0 ms | 2 | 8.00 ms | 6.00 ms | 2.00 ms |" in text
    tags = Tags(page)
    assert [tag for tag in BALANCED if tags.open.get(tag, 0)] == []
    assert "Computation and communication" not in render_html(bare) + render_markdown(bare)
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_a_rank_without_collectives_has_only_computation(bare: Report) -> None:
    alone = rank_times(0).model_copy(update={"collectives": ()})
    assert [mark.style for mark in timeline([alone]).marks] == ["c0", "c0"]
    assert collective_rows([alone]) == ()
    assert "of the first rank" not in render_html(bare.model_copy(update={"ranks": (alone,)}))
