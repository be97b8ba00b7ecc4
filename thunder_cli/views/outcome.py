"""The result of an optimization as tables: validation, speed, executors, and the paths of the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from thunder_cli.views.benchmark import MIN_WIDE_COLUMNS, benchmark_view
from thunder_cli.views.generation import generation_table, tokens_view
from thunder_cli.views.quantity import (
    count_noun,
    format_bytes,
    format_magnitude,
    format_speedup,
)
from thunder_cli.views.ranges import ranges_view
from thunder_cli.views.table import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    VERDICTS,
    plain_table,
    space_out,
    width_of,
    with_title,
)
from thunder_core.workflow.report import Report
from thunder_core.workflow.report.number_format import percent
from thunder_core.workflow.validation import OutputReport, ValidationReport
from thunder_core.workflow.validation.report import Evaluation, GenerationReport, QuantizationReport

SHOWN_OUTPUTS = 6
SHOWN_LAYERS = 3
OUTPUTS_SHOWN_FIRST = (
    "loss",
)  # shown before the outputs that are ranked by error, like outputs with a language report
OUTPUT_NAME_WIDTH, GRADIENT_NAME_WIDTH = 31, 48  # characters; the beginning of a longer name is cut
LEAST_NAME_WIDTH = 16  # characters of a name in a narrow console


def outcome_view(report: Report, *, width: int = MIN_WIDE_COLUMNS) -> RenderableType:
    """Return the verdicts and tables of a report, for a console of this width."""
    parts = [
        *_speed(report),
        *_validation(report, width),
        *_internal_check(report),
        *([quantization_view(report.quantization)] if report.quantization else []),
        *_comparison(report),
        *([evaluation_view(report.evaluation)] if report.evaluation else []),
        *_benchmark(report, width),
        *ranges_view(report, width=width),
        *operations_view(report),
        *_memory(report),
        *choices_view(report),
        *refused_view(report),
        *_remarks(report),
    ]
    return Group(*space_out(parts))


def _validation(report: Report, width: int) -> Iterator[RenderableType]:
    validation = report.validation
    if report.generation is not None:
        yield generation_view(report.generation, report.model.caveats)
        return
    if validation is None:
        pending = report.validation_state == "pending"
        state = ("pending: run `thunder validate` on the target", "yellow") if pending else ("not validated", BAD)
        yield Text.assemble(("Validation", HEAD), "  ", state)
        return
    yield validation_view(validation, width=width, caveats=report.model.caveats)


def caveats_view(caveats: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a line for each caveat about the weights."""
    yield from (Padding(Text(f"but {caveat}", "bold yellow"), (0, 0, 0, 2)) for caveat in caveats)


def caveat_warnings(caveats: Sequence[str]) -> Iterator[Text]:
    """Yield a warning for each caveat about the weights, for commands that print no tables."""
    yield from (Text(f"warning validated, but {caveat}", "yellow") for caveat in caveats)


def _internal_check(report: Report) -> Iterator[RenderableType]:
    if report.internal_check is not None:
        yield Text.assemble(("Internal check", HEAD), "  ", report.internal_check.summary)


def _comparison(report: Report) -> Iterator[RenderableType]:
    if report.comparison is not None:
        yield Text.assemble(("Comparison", HEAD), "  ", report.comparison.summary)


def findings_view(report: ValidationReport | GenerationReport, *, width: int) -> RenderableType:
    """Return a validation of single calls or of generation."""
    return generation_view(report) if isinstance(report, GenerationReport) else validation_view(report, width=width)


def tolerance_view(report: ValidationReport | GenerationReport) -> RenderableType:
    """Return the tolerance of a validation."""
    return Padding(Text(f"tolerance {report.tolerance.in_words}", DIM), (0, 0, 0, 2))


def generation_view(generation: GenerationReport, caveats: Sequence[str] = ()) -> RenderableType:
    """Return a table of each prompt size: the tokens that agree with eager's, the divergence, and the verdict."""
    tokens = count_noun(generation.new_tokens, "new token")
    detail = f"greedy, {tokens} for each prompt, prompts that were not traced, against eager PyTorch"
    table = plain_table("prompts x tokens", "tokens equal to eager's", "mean KL, nats", "largest KL", "")
    for prompts in generation.prompts:
        verdict = Text("ok", GOOD) if prompts.passed else Text("out of tolerance", BAD)
        equal = f"{prompts.equal} of {prompts.tokens}"
        table.add_row(
            prompts.size,
            equal,
            format_magnitude(prompts.mean_divergence),
            format_magnitude(prompts.largest_divergence),
            verdict,
        )
    notes = [Padding(Text(note, "yellow"), (0, 0, 0, 2)) for note in generation.notes]
    return with_title("Validation", detail, Group(table, *caveats_view(caveats), tolerance_view(generation), *notes))


def validation_view(
    validation: ValidationReport, *, width: int = MIN_WIDE_COLUMNS, caveats: Sequence[str] = ()
) -> RenderableType:
    """Return a table of each output: its errors, eager's own errors, and the verdict; then the notes."""
    detail = f"{validation.inputs_in_words}, against {validation.reference_in_words}"
    first = [output for output in validation.outputs if output.language or output.name in OUTPUTS_SHOWN_FIRST]
    shown = [*first, *(output for output in validation.ranked if output not in first)][:SHOWN_OUTPUTS]
    trains = any(output.is_gradient for output in validation.outputs)
    language = any(output.language for output in validation.outputs)
    table = _outputs_table(shown, width, trains=trains, language=language)
    hidden = len(validation.outputs) - len(shown)
    hidden_note = [Text(f"and {hidden} more, with smaller errors relative to their tolerance", DIM)] if hidden else []
    notes = [Padding(Text(note, "yellow"), (0, 0, 0, 2)) for note in validation.notes]
    return with_title(
        "Validation", detail, Group(table, *caveats_view(caveats), *hidden_note, tolerance_view(validation), *notes)
    )


def _outputs_table(outputs: Sequence[OutputReport], width: int, *, trains: bool, language: bool) -> Table:
    """Return the table of the outputs. If it would be too wide, it has no mean errors, and the names are shorter."""
    name_width = GRADIENT_NAME_WIDTH if trains else OUTPUT_NAME_WIDTH
    build = partial(_build_outputs_table, outputs, language)
    if not trains and width_of(table := build(name_width, with_means=True)) <= width:
        return table  # the names of gradients need the space of the means
    excess = width_of(table := build(name_width, with_means=False)) - width
    return table if excess <= 0 else build(max(name_width - excess, LEAST_NAME_WIDTH), with_means=False)


def _build_outputs_table(
    outputs: Sequence[OutputReport], language: bool, name_width: int, *, with_means: bool
) -> Table:
    mean_columns = ("mean", "eager's") if with_means else ()
    language_columns = ("KL, nats", "top-1") if language else ()
    table = plain_table("output", "max error", "eager's own", *mean_columns, *language_columns, "")
    for output in outputs:
        table.add_row(*_output_row(output, language, with_means, name_width))
    return table


def _output_row(output: OutputReport, language: bool, with_means: bool, name_width: int) -> Iterator[RenderableType]:
    yield Text(output.name if len(output.name) <= name_width else f"…{output.name[-name_width + 1 :]}")
    yield format_magnitude(output.optimized.maximum)
    yield Text(format_magnitude(output.eager.maximum), DIM)
    if with_means:
        yield format_magnitude(output.optimized.mean)
        yield Text(format_magnitude(output.eager.mean), DIM)
    if language:
        yield format_magnitude(output.language.kl) if output.language else ""
        yield percent(output.language.top1) if output.language else ""
    yield _output_verdict(output)


def _output_verdict(output: OutputReport) -> Text:
    """Return the verdict on an output, or a remark on its values."""
    if not output.passed:
        return Text("out of tolerance", BAD)
    return Text(output.remark, "bold yellow") if output.remark else Text("ok", GOOD)


def quantization_view(report: QuantizationReport) -> RenderableType:
    """Return the quantized model compared with the float model: metrics, bounds, size, and the worst layers."""
    table = plain_table("metric", "value", "bound")
    table.add_row(
        f"relative error of {report.output}", format_magnitude(report.error), f"at most {report.bound.error:g}"
    )
    if report.kl is not None and report.top1 is not None:
        table.add_row("KL divergence of logits, nats", format_magnitude(report.kl), f"at most {report.bound.kl:g}")
        least = f"at least {percent(report.bound.top1)}" if report.bound.top1 else "none"
        table.add_row("top-1 agreement", percent(report.top1), least)
    table.add_row("model size", format_bytes(report.bytes), f"{format_bytes(report.float_bytes)} in float")
    for layer in report.ranked[:SHOWN_LAYERS]:
        error = "not called" if layer.error is None else format_magnitude(layer.error)
        table.add_row(f"relative error of {layer.name}", error, "")
    skipped = f"; kept in float: {', '.join(report.skipped)}" if report.skipped else ""
    calibrated = f"; calibrated with {report.calibrated}" if report.calibrated else ""
    inputs = count_noun(report.inputs, "input")
    detail = f"{count_noun(len(report.layers), 'layer')}, compared with the float model on {inputs}"
    return with_title("Quantization", f"{detail}{calibrated}{skipped}", table)


def evaluation_view(evaluation: Evaluation) -> RenderableType:
    """Return a metric on real samples, for eager PyTorch and the optimized model."""
    table = plain_table("metric", "eager", "thunder", "change")
    change = evaluation.after - evaluation.before
    before, after = (f"{value:.6g}" for value in (evaluation.before, evaluation.after))
    table.add_row(evaluation.metric, before, after, f"{change:+.2g}" if change else "none")
    labels = "" if evaluation.metric == "cosine" else f"{count_noun(evaluation.counted, 'label')} of "
    detail = f"{labels}{count_noun(evaluation.samples, 'sample')}, {evaluation.file}"
    return with_title("Evaluation", detail, table)


def _speed(report: Report) -> Iterator[RenderableType]:
    """Yield the verdict on the recipe's speed, above the tables."""
    benchmark = report.speed
    if benchmark is None or len(benchmark.candidates) < 2:
        return
    candidate = benchmark.candidates[1]
    verdict = benchmark.verdict(candidate)
    loss = f": {report.recipe.name} makes this model slower on this machine" if verdict == "slower" else ""
    yield Text.assemble(
        ("Speed", HEAD),
        "  ",
        (benchmark.verdict_in_words(candidate), VERDICTS[verdict]),
        (loss, VERDICTS[verdict]),
        f"  {format_speedup(candidate.speedup)}",
    )


def _benchmark(report: Report, width: int) -> Iterator[RenderableType]:
    if report.generation_benchmarks:
        yield generation_table(report.generation_benchmarks, "Benchmark", width)
        yield from tokens_view(report.generation_benchmarks)
        return
    if report.benchmark is None:
        yield Text.assemble(("Benchmark", HEAD), "  ", ("not measured", DIM))
        return
    yield benchmark_view(report.benchmark, width=width)


def operations_view(report: Report) -> Iterator[RenderableType]:
    """Yield a table of the number of operations that each executor runs, and its share of the time, if measured."""
    if not report.executors:
        return
    trains = any(share.backward for share in report.executors)
    backward_columns = ("backward", "backward time") if trains else ()
    table = plain_table("executor", "forward" if trains else "operations", "time", *backward_columns, "most frequent")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    total = sum(share.operations for share in report.executors)
    for share in report.executors:
        frequent = ", ".join(f"{short_name(operation.name)} {operation.count}" for operation in share.frequent)
        count = f"{share.operations} ({percent(share.operations / total)})"
        backward_cells = (str(share.backward), _percent_or_empty(share.backward_share)) if trains else ()
        table.add_row(share.executor, count, _percent_or_empty(share.time_share), *backward_cells, Text(frequent, DIM))
    traced = next((row.lines for row in report.traces if row.trace == "computation"), total)
    yield with_title("Operations", f"{traced} traced, {total} executed{_backward_in_words(report)}", table)


def short_name(operation: str) -> str:
    """Return the name of an operation without its module and its default overload."""
    return operation.removesuffix(".default").rpartition(".")[2]


def _percent_or_empty(share: float | None) -> str:
    return "" if share is None else percent(share)


def _backward_in_words(report: Report) -> str:
    """Return the number of the backward's operations, or the reason why there is no backward; empty for inference."""
    operations = sum(share.backward for share in report.executors)
    if not report.train:
        return ""
    no_backward = f"; no compiled backward, autograd differentiates the program: {report.no_backward_reason}"
    return no_backward if report.no_backward_reason else f", {operations} in the backward"


def _memory(report: Report) -> Iterator[RenderableType]:
    """Yield the peak memory, and the line of the trace at which the memory is largest."""
    peak = report.memory_peak
    if peak is None:
        return
    saved_text = f"; {format_bytes(report.saved_bytes)} saved for the backward" if report.saved_bytes else ""
    peak_text = f"estimated peak, at line {peak.line} of the {peak.trace}{saved_text}"
    yield Text.assemble(("Memory", HEAD), f"  {format_bytes(peak.bytes)} ", (peak_text, DIM))


def refused_view(report: Report, *, absent: bool = False) -> Iterator[RenderableType]:
    """Yield a table of the operations that executors refused; with `absent`, also of executors that are missing."""
    rows = [refusal for refusal in report.refused if absent or refusal.operations is not None]
    if not rows:
        return
    table = plain_table("executor", "operations", "reason")
    table.columns[2].justify, table.columns[2].no_wrap = "left", False
    for refusal in rows:
        table.add_row(
            refusal.executor,
            "not available" if refusal.operations is None else str(refusal.operations),
            Text(refusal.reason, DIM),
        )
    yield with_title("Operations that executors refused", "", table)


def choices_view(report: Report) -> Iterator[RenderableType]:
    """Yield a table of the kernels that executors chose by a measurement."""
    if not report.choices:
        return
    table = plain_table("executor", "operations", "measured")
    table.columns[2].justify, table.columns[2].no_wrap = "left", False
    for chosen in report.choices:
        table.add_row(chosen.executor, str(chosen.operations), Text(chosen.choice, DIM))
    yield with_title("Kernels that were chosen by a measurement", "", table)


def _remarks(report: Report) -> Iterator[RenderableType]:
    if report.sharp_edges:
        yield list_lines("Sharp edges (no guard checks them)", map(Text, report.sharp_edges), "bold yellow")
    if report.model.notes:
        yield list_lines("Notes", map(Text, report.model.notes), HEAD)


def list_lines(title: str, lines: Iterable[Text], style: str) -> RenderableType:
    """Return lines under a title, indented as a whole."""
    return Group(Text(title, style), *(Padding(line, (0, 0, 0, 2)) for line in lines))


def paths_view(report: Report, artifact: Path) -> Text:
    """Return the paths of the results, unwrapped for copying, and the skipped parts of the recipe."""
    text = Text.assemble(("artifact", HEAD), f"  {artifact}\n", ("report", HEAD), f"    {artifact / 'report.html'}")
    if report.weights_bytes:
        text.append("\nweights", HEAD).append(f"   {format_bytes(report.weights_bytes)}, in the artifact")
    if report.degraded:
        parts = ", ".join(dict.fromkeys(part.part for part in report.degraded))
        text.append("\ndegraded", "bold yellow").append(f"  {parts}; see the report for the reasons")
    return text


STATES_IN_WORDS = {
    "validated": "validated again; the artifact was not changed",
    "pending": "validated on this machine; the artifact is still marked as pending",
    "off": "validated on this machine; the artifact is still marked as not validated",
}


def revalidation_view(artifact: Path, state: str, *, written: bool) -> Text:
    """Return the path of an artifact, and its state after a validation."""
    now = "validated; the report and the manifest were updated" if written else STATES_IN_WORDS[state]
    return Text.assemble(("artifact", HEAD), f"  {artifact}\n", ("state", HEAD), "     ", (now, GOOD))
