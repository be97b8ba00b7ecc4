"""The section of a report on `generate`: rows of contenders at each size, and the time of each token as lines."""

from __future__ import annotations

import re

import pytest

from tests.report.samples import generation
from thunder_core.workflow.report import Report, plots, render_html, render_markdown
from thunder_core.workflow.report.render import headlines_of


@pytest.fixture
def generating(bare: Report) -> Report:
    """A report in which only `generate` was measured, at two batch sizes."""
    return bare.model_copy(update={"generation_benchmarks": (generation(1), generation(8))})


def test_both_pages_show_each_size(generating: Report) -> None:
    page, text = render_html(generating), render_markdown(generating)
    for document in (page, text):
        assert all(document.count(f"{batch} x 32 + 24 tokens") for batch in (1, 8))
        assert "25% of its tokens differ from eager" in document
        assert all(figure in document for figure in ("60.2 ms", "30.1 ms", "49.8", "399", "99.7", "797", "3.00 MiB"))
    rows = re.findall(r"^\| [18] x .*$", text, flags=re.MULTILINE)
    assert [row.count("| faster |") for row in rows] == [0, 2, 0, 2]
    assert page.count('<path class="line') == 4
    assert "None" not in page
    assert Report.model_validate_json(generating.model_dump_json()) == generating


def test_the_speed_of_generation_is_the_headline_if_no_call_was_measured(generating: Report, full: Report) -> None:
    speed = headlines_of(generating)[1]
    assert (speed.figure[:4], speed.style) == ("2.00", "good")
    assert "522 ms eager" in speed.detail
    both = full.model_copy(update={"generation_benchmarks": generating.generation_benchmarks})
    assert headlines_of(both)[1] == headlines_of(full)[1]


def test_equal_tokens_are_reported_as_equal(bare: Report) -> None:
    measured = generation()
    same = tuple(text.model_copy(update={"equal": 1.0, "differs_at": None}) for text in measured.texts)
    report = bare.model_copy(update={"generation_benchmarks": (measured.model_copy(update={"texts": same}),)})
    for document in (render_html(report), render_markdown(report)):
        assert "All contenders generate the same tokens." in document
        assert "of its tokens differ" not in document


def test_a_line_begins_behind_the_first_token() -> None:
    drawn = plots.token_lines(generation(tokens=4))
    eager, thunder = drawn.lines
    assert drawn.unit == "ms"
    assert eager.path == "M44.0,12.0 L277.0,12.0 L510.0,12.0"
    assert thunder.path == "M44.0,91.0 L277.0,91.0 L510.0,91.0"
    assert thunder.text == "first after 30.0 ms, then 10.0 ms per token"
    (eager, _) = plots.token_lines(generation(tokens=1)).lines
    assert (eager.path, eager.text) == ("", "first after 60.0 ms")


def test_a_call_that_stalls_does_not_flatten_the_rest() -> None:
    measured = generation(tokens=4)
    eager, thunder = measured.texts
    stalled = thunder.model_copy(update={"seconds": (0.03, 0.01, 5.0, 0.01)})
    drawn = plots.token_lines(measured.model_copy(update={"texts": (eager, stalled)}))
    assert drawn.lines[1].path == "M44.0,150.25 L277.0,12.0 L510.0,150.25"
