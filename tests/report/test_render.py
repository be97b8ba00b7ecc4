"""Pages match the report, escape its texts, and need no external resources."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.benchmark.test_verdict import steady
from tests.report.samples import output, validation
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.report import Report, render_html, render_markdown, write_report
from thunder_core.workflow.report.number_format import TIMES
from thunder_core.workflow.report.render import headlines_of
from thunder_core.workflow.validation.report import GenerationReport, PromptReport

NASTY = "<script>alert('x')</script> | a\nb"
BALANCED = ["html", "head", "body", "main", "header", "section", "div", "figure", "svg", "g", "table", "p", "span"]


class Tags(HTMLParser):
    """A parser that counts the opening and closing tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: dict[str, int] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Increment the count."""
        self.open[tag] = self.open.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        """Decrement the count."""
        self.open[tag] = self.open.get(tag, 0) - 1


def test_the_big_figures(full: Report) -> None:
    verdict, speed, error = headlines_of(full)
    assert (verdict.figure, verdict.style) == ("Validated, degraded", "warning")
    assert verdict.detail == "1 part of the recipe skipped on this machine; 2 outputs on 3 inputs, against float64"
    assert (speed.figure, speed.style) == (f"2.00{TIMES}", "good")
    assert "95% interval" in speed.detail
    assert "20.5 ms eager" in speed.detail
    assert (error.figure, error.style) == (f"1.00{TIMES}", "plain")
    assert error.detail == "past_key_values.layers.0.keys: 1.0e-06, eager 1.0e-06, allowed 3.0e-06"


def test_side_effects_are_counted_next_to_outputs(full: Report) -> None:
    outputs = output("logits", 1e-7), output("norm.running_mean after the call", 1e-7)
    report = full.model_copy(update={"validation": validation(*outputs), "degraded": ()})
    assert headlines_of(report)[0].detail == "1 output and 1 side effect on 3 inputs, against float64"


@pytest.mark.parametrize("untraced", [True, False])
def test_inputs_are_called_untraced_only_if_they_were_not_traced(full: Report, untraced: bool) -> None:
    told = validation(output("logits", 1e-7)).model_copy(update={"untraced": untraced})
    report = full.model_copy(update={"validation": told})
    for page in (render_html(report), render_markdown(report)):
        assert ("3 inputs that were not traced" in page) is untraced
        assert "3 inputs" in page


@pytest.mark.parametrize(
    ("ratio", "noise", "figure", "style"),
    [
        (0.5, 0.02, f"0.500{TIMES}", "bad"),
        (1.0, 0.02, "Not distinguishable", "plain"),
        (2.0, 0.9, "Unstable", "warning"),
    ],
)
def test_a_speed_is_never_rounded_up(full: Report, ratio: float, noise: float, figure: str, style: str) -> None:
    report = full.model_copy(update={"benchmark": steady(ratio, noise=noise)})
    headline = headlines_of(report)[1]
    assert (headline.figure[:4], headline.style) == (figure[:4], style)
    warning = "hf-llama3 makes this model slower than eager PyTorch on this machine"
    page, text = render_html(report), render_markdown(report)
    assert (warning in page, warning in text.partition("| |")[0]) == (ratio < 1, ratio < 1)
    for told in (report.benchmark.verdict_in_words(report.benchmark.candidates[1]), "p99", "samples/s"):
        assert told in page
        assert told in text


def test_the_verdict_is_never_better_than_the_run(full: Report, bare: Report) -> None:
    failed = validation(output("logits", 1e-3, passed=False))
    cases = {
        "Not validated": bare,
        "Out of tolerance": full.model_copy(update={"validation": failed}),
        "Validated, degraded": full,
        "Validated": full.model_copy(update={"degraded": ()}),
    }
    for figure, report in cases.items():
        assert headlines_of(report)[0].figure == figure
        assert figure in render_html(report)
        assert f"**{figure}**" in render_markdown(report)


def test_verdict_on_generation_repeats_caveats_and_skipped_parts(full: Report) -> None:
    prompts = PromptReport(size="1 x 8", tokens=4, equal=4, divergences=(0.0,), passed=True)
    tokens = GenerationReport(
        passed=True, new_tokens=4, dtype="float32", exact=True, tolerance=Tolerance(), prompts=(prompts,)
    )
    generated = full.model_copy(update={"generation": tokens})
    assert headlines_of(generated)[0].figure == "Validated, degraded"
    random_head = full.model.model_copy(update={"caveats": ("lm_head.weight is random",)})
    verdict = headlines_of(generated.model_copy(update={"model": random_head}))[0]
    assert (verdict.figure, verdict.style) == ("Validated, other weights", "warning")
    assert verdict.detail.startswith("lm_head.weight is random; 4 of 4 greedy tokens agree")
    right = headlines_of(generated.model_copy(update={"degraded": ()}))[0]
    assert right.figure == "Validated"


@pytest.mark.parametrize("which", ["full", "bare"])
def test_the_page_is_whole_and_self_contained(which: str, request: pytest.FixtureRequest) -> None:
    page = render_html(request.getfixturevalue(which))
    tags = Tags(page).open
    assert {tag: tags.get(tag, 0) for tag in BALANCED} == dict.fromkeys(BALANCED, 0)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?:|<script|<link|<img|src=|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_every_part_is_on_both_pages(full: Report) -> None:
    page, text = render_html(full), render_markdown(full)
    parts = ("tiny", "hf-llama3", "FuseNorms", "no Hopper GPU", "use one", "a constant", "trace", "claim", "logits")
    parts += ("past_key_values.layers.0.keys", "triton", "torch.op14", "a machine", "a processor", "a GPU", "a note")
    for part in parts:
        assert part in page
        assert part in text
    assert page.count("<svg") == 6


def test_missing_parts_leave_no_empty_section(bare: Report) -> None:
    page, text = render_html(bare), render_markdown(bare)
    assert "<svg" not in page
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Recipe", "Environment"]
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Model and recipe", "Environment"]


def test_backwards_are_counted_and_missing_ones_have_a_reason(full: Report) -> None:
    share = full.executors[0].model_copy(update={"backward": 77, "backward_share": 0.5})
    report = full.model_copy(
        update={"executors": (share, *full.executors[1:]), "no_backward_reason": "autograd was off"}
    )
    for told in ("77 in the backward, 50%", "operations of the backward", "time of the backward"):
        assert told in render_html(report)
    assert "| triton | 30 | 75% | 77 | 50% |" in render_markdown(report)
    assert "| torch | 10 | 25% | 0 |  |" in render_markdown(report)
    for page in (render_html(report), render_markdown(report)):
        assert "The artifact has no compiled backward: autograd was off." in page
    assert "backward" not in render_markdown(full) + render_html(full)


def test_nothing_of_the_report_is_markup(full: Report) -> None:
    nasty = full.model_copy(
        update={
            "model": full.model.model_copy(update={"name": NASTY}),
            "sharp_edges": (NASTY,),
            "stages": (full.stages[0].model_copy(update={"name": NASTY}),),
            "validation": validation(output(NASTY, 1e-7)),
        }
    )
    page, text = render_html(nasty), render_markdown(nasty)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert "<script" not in text.replace("`<script", "")


def test_markdown_tables_keep_their_shape(full: Report) -> None:
    full = full.model_copy(update={"validation": validation(output("a|b", 1e-7)), "sharp_edges": (NASTY,)})
    text = render_markdown(full)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) >= 8
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_memory_is_shown_if_the_device_counts_it(full: Report) -> None:
    assert full.benchmark is not None
    assert "peak memory" not in render_html(full) + render_markdown(full)
    counted = [candidate.model_copy(update={"peak_bytes": 3 << 20}) for candidate in full.benchmark.candidates]
    full = full.model_copy(update={"benchmark": full.benchmark.model_copy(update={"candidates": tuple(counted)})})
    for page in (render_html(full), render_markdown(full)):
        assert "peak memory" in page
        assert page.count("3.00 MiB") >= 2


def test_many_outputs_are_folded(full: Report) -> None:
    many = validation(*(output(f"layers.{n}", 1e-7) for n in range(40)))
    page = render_html(full.model_copy(update={"validation": many}))
    assert "All 40 outputs" in page
    assert "and 28 more, with smaller errors" in page


def test_three_files_are_written(full: Report, tmp_path: Path) -> None:
    write_report(full, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md", "report.html"}
    assert Report.model_validate_json((tmp_path / "report.json").read_text(encoding="utf-8")) == full
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_html(full)


def test_pending_validation_and_included_weights_are_reported(bare: Report) -> None:
    pending = bare.model_copy(update={"validation_state": "pending", "weights_bytes": 3 << 20})
    for page in (render_markdown(pending), render_html(pending)):
        assert "Validation pending" in page
        assert "3.00 MiB" in page
    assert "Validation pending" not in render_markdown(bare)
    assert "MiB" not in render_html(bare)


def test_operations_that_executors_did_not_run_are_listed_with_the_reason(full: Report, bare: Report) -> None:
    markdown, html = render_markdown(full), render_html(full)
    assert "| nvfuser | not available | no CUDA GPU |" in markdown
    assert "| inductor | 7 | a result has \\| strides &lt; |" in markdown
    assert '<td>inductor<td class="number">7<td>a result has | strides &lt;</tr>' in html
    assert "did not run" not in render_markdown(bare) + render_html(bare)


HIDDEN = "a\x1b[2Jb\x9bc\u202ed\x07"


def everywhere(value: object) -> object:
    """Plain data in which every free text contains control characters and a link."""
    if isinstance(value, dict):
        return {key: one if key in LITERAL else everywhere(one) for key, one in value.items()}
    if isinstance(value, list):
        return [everywhere(item) for item in value]
    return f"{value}{HIDDEN}![x](http://evil)" if isinstance(value, str) else value


LITERAL = ("created", "validation_state", "trace", "state", "call")


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_no_control_character_of_a_report_is_on_a_page(full: Report, render) -> None:
    nasty = Report.model_validate(everywhere(full.model_dump(mode="json")))
    page = render(nasty)
    assert page.replace("\n", "").isprintable()
    assert page.count("\\x1b[2J" if render is render_html else "x1b\\[2J") > 20


def test_no_link_of_a_report_is_a_link_in_markdown(full: Report) -> None:
    nasty = Report.model_validate(everywhere(full.model_dump(mode="json")))
    outside_code = re.sub(r"`[^`]*`", "", render_markdown(nasty))
    assert "http://evil" in outside_code
    assert re.findall(r"(?<!\\)\[", outside_code) == []


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_ranges_without_a_validation_or_measurement_at_each_size_have_no_empty_table(full: Report, render) -> None:
    unmeasured = {"validation": None, "benchmark": None, "further_benchmarks": (), "constraints": ()}
    page = render(full.model_copy(update={**unmeasured, "dynamic": {"batch": (1, 8)}}))
    assert "Ranges" in page
    assert "Each size was" not in page
    assert "needed by" not in page
