"""A report as pages: Markdown for terminals and code hosts, and one self-contained HTML file for browsers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from thunder_core.foundation.package import __version__
from thunder_core.foundation.printable import printable
from thunder_core.foundation.time_format import format_time, significant
from thunder_core.tracing.extension.requirement import by_reason
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport
from thunder_core.workflow.benchmark.verdict import Verdict
from thunder_core.workflow.report import number_format, plots
from thunder_core.workflow.report.contents import Report
from thunder_core.workflow.report.generation import generation_rows
from thunder_core.workflow.report.markdown import cell, code_cell
from thunder_core.workflow.report.ranges import constraints_of, points_of, served_in_words
from thunder_core.workflow.report.search import SearchBounds, SearchReport
from thunder_core.workflow.report.search_plot import pareto_plot
from thunder_core.workflow.report.timeline_plot import collective_rows, timeline
from thunder_core.workflow.validation.report import GenerationReport, ValidationReport


def as_shown(value: object) -> object:
    """Return a value for a template, with control characters in strings as escapes; markup remains markup."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return Markup(text) if isinstance(value, Markup) else text  # noqa: S704 (it was markup before)


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("thunder_core.workflow.report"),
    autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2", "svg.j2"), default=False),
    undefined=jinja2.StrictUndefined,
    finalize=as_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
FILTERS = ("size", "count", "error", "times", "percent")
VERDICT_STYLES: dict[Verdict, str] = {
    "faster": "good",
    "slower": "bad",
    "unstable": "warning",
    "not distinguishable": "plain",
}
SHOWN_FIGURE: frozenset[Verdict] = frozenset({"faster", "slower"})


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 input`, `2 inputs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


TEMPLATES.filters.update(
    {name: getattr(number_format, name) for name in FILTERS},
    cell=cell,
    code=code_cell,
    plural=plural,
    seconds=format_time,
    significant=significant,
)
TEMPLATES.globals.update(generation_rows=generation_rows, verdict_styles=VERDICT_STYLES)


@dataclass(frozen=True)
class Headline:
    """A large figure at the top of the page."""

    title: str
    figure: str
    detail: str
    style: str
    """`good`, `warning`, `bad` or `plain`: determines the colour and the sign."""


def render_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return TEMPLATES.get_template("report.md.j2").render(**parts_of(report))


def render_html(report: Report) -> str:
    """Return the report as one HTML file that needs neither network nor script."""
    token_plots = [plots.token_lines(benchmark) for benchmark in report.generation_benchmarks]
    search_plot = report.search and pareto_plot(report.search)
    graphics = {
        "search_plot": search_plot,
        "plots": plots_of(report),
        "token_plots": token_plots,
        "timeline": timeline(report.ranks) if report.ranks else None,
    }
    return TEMPLATES.get_template("report.html.j2").render(**parts_of(report), **graphics)


def parts_of(report: Report) -> dict[str, object]:
    """Return the report, and the values that both pages derive from it."""
    return {
        "report": report,
        "headlines": headlines_of(report),
        "warning": warning_of(report),
        "degraded": by_reason(report.degraded),
        "served": served_in_words(report),
        "points": points_of(report),
        "constraints": constraints_of(report),
        "collectives": collective_rows(report.ranks),
        **search_parts(report.search),
    }


def search_parts(search: SearchReport | None) -> dict[str, object]:
    """Return the values that pages derive from a search."""
    return {"search_bounds": [] if search is None else bounds_in_words(search.bounds)}


def bounds_in_words(bounds: SearchBounds) -> list[str]:
    """Return each bound of a search in words; without bounds, that the bounds of each recipe apply."""
    stated = [
        bounds.max_kl is not None and f"KL divergence at most {bounds.max_kl:g} nats",
        bounds.min_top1 is not None and f"top-1 agreement at least {bounds.min_top1:g}",
        bounds.max_error is not None and f"relative error at most {bounds.max_error:g}",
        bounds.max_memory is not None and f"memory at most {number_format.size(bounds.max_memory)}",
    ]
    return [text for text in stated if text] or ["the bounds of each recipe"]


def render_search(search: SearchReport, *, model: str = "") -> str:
    """Return a search as one HTML file that needs neither network nor script."""
    return TEMPLATES.get_template("search_page.html.j2").render(
        search=search, model=model, thunder=__version__, search_plot=pareto_plot(search), **search_parts(search)
    )


def render_search_markdown(search: SearchReport) -> str:
    """Return a search as GitHub-flavoured Markdown."""
    return TEMPLATES.get_template("search.md.j2").render(search=search, **search_parts(search))


PAGES: dict[str, Callable[[Report], str]] = {
    "report.json": lambda report: report.model_dump_json(indent=2) + "\n",
    "report.md": render_markdown,
    "report.html": render_html,
}


def write_report(report: Report, folder: Path) -> None:
    """Write report.json, report.md and report.html into an existing folder."""
    for name, render in PAGES.items():
        (folder / name).write_text(render(report), encoding="utf-8")


def plots_of(report: Report) -> dict[str, object]:
    """Return each plot by name; None if the report has no data for it."""
    named_plots = {
        "strips": report.benchmark and plots.time_strips(report.benchmark),
        "dumbbells": report.validation and report.validation.outputs and plots.error_dumbbells(report.validation),
        "stages": report.stages and plots.stage_bars(report.stages),
        "shares": report.executors and plots.executor_shares(report.executors),
        "operations": report.operations and plots.operation_bars(report.operations),
        "layers": report.quantization and plots.layer_errors(report.quantization),
        "curve": any(point.bytes for point in report.memory) and plots.memory_curve(report.memory),
    }
    return {name: plot or None for name, plot in named_plots.items()}


def headlines_of(report: Report) -> tuple[Headline, ...]:
    """Return the headlines: verdict, speed and error."""
    return (_verdict(report), *_speed(report), *_error(report))


def _verdict(report: Report) -> Headline:
    if report.validation_state == "pending":
        return Headline("Verdict", "Validation pending", "run `thunder validate` on the target", "warning")
    if report.generation is not None:
        agreement = _agreement_in_words(report.generation)
        problem = _problem_of_generation(report.generation, agreement)
    elif report.validation is not None:
        agreement = _comparison_in_words(report.validation)
        problem = _problem_of_validation(report.validation, agreement)
    else:
        return Headline("Verdict", "Not validated", "validation was switched off", "warning")
    return problem or _verdict_on_valid(report, agreement)


def _problem_of_validation(validation: ValidationReport, agreement: str) -> Headline | None:
    if not validation.passed:
        return Headline("Verdict", "Out of tolerance", agreement, "bad")
    broken = [output.name for output in validation.outputs if not output.finite]
    if broken:
        detail = f"{plural(len(broken), 'output')} with NaN or infinities, including {broken[0]}; {agreement}"
        return Headline("Verdict", "Validated, not finite", detail, "warning")
    if validation.vacuous:
        return Headline("Verdict", "Validated, all zeros", f"every output is zero in eager; {agreement}", "warning")
    return None


def _problem_of_generation(generation: GenerationReport, agreement: str) -> Headline | None:
    if not generation.passed:
        return Headline("Verdict", "Out of tolerance", agreement, "bad")
    return Headline("Verdict", "Validated, not finite", agreement, "warning") if generation.notes else None


def _verdict_on_valid(report: Report, agreement: str) -> Headline:
    """Return the verdict on a model that passed the validation, with the most important remark."""
    if report.model.caveats:
        detail = f"{'; '.join(report.model.caveats)}; {agreement}"
        return Headline("Verdict", "Validated, other weights", detail, "warning")
    if is_slower(report):
        detail = f"use another recipe on this machine; {agreement}"
        return Headline("Verdict", "Validated, slower than eager", detail, "warning")
    if report.degraded:
        skipped = f"{plural(len(report.degraded), 'part')} of the recipe skipped on this machine"
        return Headline("Verdict", "Validated, degraded", f"{skipped}; {agreement}", "warning")
    return Headline("Verdict", "Validated", agreement, "good")


def is_slower(report: Report) -> bool:
    """Whether the optimized model was measured to be slower than eager PyTorch."""
    measured = report.speed
    return (
        measured is not None and len(measured.candidates) > 1 and measured.verdict(measured.candidates[1]) == "slower"
    )


def _agreement_in_words(generation: GenerationReport) -> str:
    """Return the number of tokens that are equal to eager PyTorch's, and the number of prompt sizes, in words."""
    equal = f"{generation.equal} of {generation.tokens} greedy tokens agree with eager's"
    return f"{equal}, for {plural(len(generation.prompts), 'prompt size')}"


def _comparison_in_words(validation: ValidationReport) -> str:
    """Return the compared values, the number of inputs and the reference in words."""
    inputs = plural(validation.inputs, "input")
    return f"{_compared_in_words(validation)} on {inputs}, against {validation.reference_in_words}"


def _compared_in_words(validation: ValidationReport) -> str:
    """Return the compared values in words: outputs, gradients in training, and side effects."""
    gradients = sum(output.is_gradient for output in validation.outputs)
    effects = sum(output.is_state for output in validation.outputs)
    counts = {"output": len(validation.outputs) - gradients - effects, "gradient": gradients, "side effect": effects}
    words = [plural(number, noun) for noun, number in counts.items() if number or noun == "output"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _speed(report: Report) -> list[Headline]:
    if report.speed is None or len(report.speed.candidates) < 2:
        return []
    first, second = report.speed.candidates[:2]
    verdict, ratio = report.speed.verdict(second), second.speedup
    figure = number_format.times(ratio.value) if verdict in SHOWN_FIGURE else verdict.capitalize()
    between = f"95% interval {number_format.times(ratio.low)} to {number_format.times(ratio.high)}"
    medians = f"{format_time(first.median)} {first.name}, {format_time(second.median)} {second.name}"
    words = report.speed.verdict_in_words(second).removeprefix(f"{verdict}: ")
    detail = f"{words}; {number_format.times(ratio.value)}, {between}; {medians}"
    return [Headline(f"Speed compared with {first.name}", figure, detail, VERDICT_STYLES[verdict])]


def warning_of(report: Report) -> str:
    """Return the warning at the top of the page if the recipe makes the model slower; otherwise an empty string."""
    if report.speed is None or not is_slower(report):
        return ""
    first, second = report.speed.candidates[:2]
    slower = f"{report.recipe.name} makes this model slower than {first.name} PyTorch on this machine"
    return f"{slower}: {number_format.times(second.speedup.value)} the speed."


def verdict_style(report: BenchmarkReport, candidate: BenchmarkCandidate) -> str:
    """Return the style of a verdict: `good` if faster, `bad` if slower, `warning` if the measurement is unstable."""
    return VERDICT_STYLES[report.verdict(candidate)]


def _error(report: Report) -> list[Headline]:
    if report.validation is None or not report.validation.outputs:
        return []
    worst = report.validation.ranked[0]
    own_error, eager_error = worst.optimized.maximum, worst.eager.maximum
    title = "Largest error relative to eager's own" if eager_error else "Largest error"
    figure = number_format.times(own_error / eager_error) if eager_error else number_format.error(own_error)
    detail = f"{worst.name}: {number_format.error(own_error)}, eager {number_format.error(eager_error)}"
    allowed = f"allowed {number_format.error(report.validation.allowed_error(worst))}"
    return [Headline(title, figure, f"{detail}, {allowed}", "plain" if worst.passed else "bad")]
