"""The result of an optimization as tables: how near, how fast, who runs what, and where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import magnitude, percent, seconds, speedup
from thunder_core.benchmark import BenchmarkReport, Candidate
from thunder_core.report import Report
from thunder_core.validation import OutputReport, ValidationReport

SHOWN_OUTPUTS = 6
GOOD, BAD, DIM, HEAD = "green", "bold red", "dim", "bold"


def outcome_view(report: Report, artifact: Path) -> RenderableType:
    """Everything that the report says in short."""
    parts = [*_validation(report), *_benchmark(report), *_operations(report), *_degraded(report), _places(artifact)]
    return Group(*_spaced(parts))


def _spaced(parts: list[RenderableType]) -> Iterator[RenderableType]:
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield part


def plain_table(title: str, *columns: str, detail: str = "") -> Table:
    """A table without lines but the one under its header; the first column is text, the others are numbers."""
    table = Table(
        title=Text.assemble((title, HEAD), (f"  {detail}" if detail else "", DIM)),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        header_style=DIM,
        pad_edge=False,
        padding=(0, 1),
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    return table


def _validation(report: Report) -> Iterator[RenderableType]:
    validation = report.validation
    if validation is None:
        yield Text.assemble(("Validation", HEAD), "  ", ("not validated", BAD))
        return
    yield validation_view(validation)


def validation_view(validation: ValidationReport) -> RenderableType:
    """Each output: its errors beside eager's own, and the verdict."""
    inputs = f"{validation.inputs} input{'' if validation.inputs == 1 else 's'}"
    detail = f"{inputs} that were not traced, against {validation.reference_dtype}"
    language = any(output.language for output in validation.outputs)
    spoken = ("KL, nats", "top-1") if language else ()
    table = plain_table(
        "Validation", "output", "max error", "eager's own", "mean", "eager's", *spoken, "", detail=detail
    )
    ranked = sorted(validation.outputs, key=lambda output: (output.passed, -output.smallest_tolerance))
    first = next((output for output in validation.outputs if output.language), None)
    shown = [*([first] if first else []), *(output for output in ranked if output is not first)][:SHOWN_OUTPUTS]
    for output in shown:
        table.add_row(*_output(output, language))
    hidden = len(validation.outputs) - len(shown)
    if not hidden:
        return table
    return Group(table, Text(f"and {hidden} more outputs, each nearer than these to what is allowed", DIM))


def _output(output: OutputReport, language: bool) -> Iterator[RenderableType]:
    yield Text(output.name)
    yield magnitude(output.optimized.maximum)
    yield Text(magnitude(output.eager.maximum), DIM)
    yield magnitude(output.optimized.mean)
    yield Text(magnitude(output.eager.mean), DIM)
    if language:
        yield magnitude(output.language.kl) if output.language else ""
        yield percent(output.language.top1) if output.language else ""
    yield Text("ok", GOOD) if output.passed else Text("out of tolerance", BAD)


def _benchmark(report: Report) -> Iterator[RenderableType]:
    if report.benchmark is None:
        yield Text.assemble(("Benchmark", HEAD), "  ", ("not measured", DIM))
        return
    yield benchmark_view(report.benchmark)


def benchmark_view(benchmark: BenchmarkReport, *, title: str = "Benchmark") -> Table:
    """Each candidate: its median, spread and speed-up."""
    detail = f"{benchmark.runs} runs in turn after {benchmark.warmup} to warm up, {benchmark.machine}"
    memory = any(candidate.peak_bytes is not None for candidate in benchmark.candidates)
    columns = ("median", "spread", "speed-up  [95%]", *(("peak memory",) if memory else ()))
    table = plain_table(title, "candidate", *columns, detail=detail)
    for candidate in benchmark.candidates:
        table.add_row(*_candidate(candidate, benchmark, memory))
    return table


def _candidate(candidate: Candidate, benchmark: BenchmarkReport, memory: bool) -> Iterator[RenderableType]:
    yield candidate.name
    yield seconds(candidate.median)
    yield Text(seconds(candidate.spread), DIM)
    yield "" if candidate is benchmark.first else speedup_text(candidate)
    if memory:
        yield "" if candidate.peak_bytes is None else f"{candidate.peak_bytes / 2**20:.1f} MiB"


def speedup_text(candidate: Candidate) -> Text:
    """The speed-up: green where the whole interval is above 1, yellow where it is below, else plain."""
    interval = candidate.speedup
    style = GOOD if interval.low > 1 else "yellow" if interval.high < 1 else ""
    return Text(speedup(interval), style)


def _operations(report: Report) -> Iterator[RenderableType]:
    if not report.executors:
        return
    table = plain_table("Operations", "executor", "operations", "most frequent", detail=_trace_detail(report))
    table.columns[2].justify, table.columns[2].no_wrap = "left", False
    total = sum(share.operations for share in report.executors)
    frequent = ", ".join(f"{o.name.rpartition('.')[2]} {o.count}" for o in report.operations[:5])
    for number, share in enumerate(report.executors):
        count = f"{share.operations} ({percent(share.operations / total)})"
        table.add_row(share.executor, count, Text(frequent if number == 0 else "", DIM))
    yield table


def _trace_detail(report: Report) -> str:
    computation = [row.lines for row in report.traces if row.trace == "computation"]
    return f"{computation[0]} lines as traced, {computation[-1]} as run" if computation else ""


def _degraded(report: Report) -> Iterator[RenderableType]:
    lines = [Text.assemble("  ", (d.part, HEAD), f": {d.reason}", (f" ({d.fix})", DIM)) for d in report.degraded]
    if lines:
        yield Group(Text("Degraded: this machine lacks a part of the recipe", "bold yellow"), *lines)
    edges = [Text(f"  {edge}") for edge in report.sharp_edges]
    if edges:
        yield Group(Text("Sharp edges: what no guard watches", "bold yellow"), *edges)
    notes = [Text(f"  {note}") for note in report.model.notes]
    if notes:
        yield Group(Text("Notes", HEAD), *notes)


def _places(artifact: Path) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(Text("artifact", HEAD), Text(str(artifact), overflow="fold"))
    grid.add_row(Text("report", HEAD), Text(str(artifact / "report.html"), overflow="fold"))
    return grid
