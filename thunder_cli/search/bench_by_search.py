"""`thunder bench --candidates`: measure the candidates of a search without writing an artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from thunder_cli.console import json_data, print_json, say, stderr, stdout
from thunder_cli.results.bench_output import BenchOutput
from thunder_cli.search.planned_search import plan_and_print_search
from thunder_cli.search.search_progress import show_search_progress
from thunder_cli.search.views import search_view
from thunder_cli.settings import Settings
from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.storage.file import write_atomically
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.destination import file_stem
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import check_request
from thunder_core.workflow.pipeline.request.search_request import USUAL_SECONDS, check_search
from thunder_core.workflow.report import SearchReport, render_search, render_search_markdown

OUTPUT_SUFFIXES = (".json", ".md")


def bench_by_search(settings: Settings, bench_request: BenchRequest, output: BenchOutput) -> None:
    """Measure the candidates for a model, and print, write and plot the results."""
    refuse_unsupported(bench_request, output)
    request, search = request_of(settings, bench_request), settings.search_request()
    search = search if search.search is not None else replace(search, search=USUAL_SECONDS)
    check_search(search, request)
    check_request(request)
    console = stderr(quiet=output.quiet)
    planned = plan_and_print_search(request, search, console)
    with show_search_progress(console) as observer:
        run = planned.run(observer, writes=False)
    report = run.report()
    write_files(report, output, model=file_stem(planned.base.prepared.model_name))
    print_search(report, output)


def request_of(settings: Settings, bench_request: BenchRequest) -> Request:
    """Return the request for the measured model; raise `BadOption` if several batch sizes or lengths are named."""
    sizes: dict[str, int | None] = {}
    for name, several in (("batch", bench_request.batches), ("seq", bench_request.seqs)):
        if len(several) > 1:
            raise BadOption(f"--{name} names several sizes, and --candidates measures one", fix=f"name one --{name}")
        sizes[name] = several[0]
    same = ("prompt_length", "new_tokens", "input", "threads")
    return replace(settings.request(), **sizes, **{name: getattr(bench_request, name) for name in same})  # type: ignore[arg-type]


def refuse_unsupported(bench_request: BenchRequest, output: BenchOutput) -> None:
    """Raise `BadOption` for options that `--candidates` does not support, and for unsupported file formats."""
    usual = BenchRequest()
    unsupported = {
        "--against": bench_request.against is not None,
        "--runs": bench_request.runs != usual.runs,
        "--warmup": bench_request.warmup != usual.warmup,
        "--baseline": output.baseline is not None,
        "--require-speedup": output.require_speedup is not None,
        f"--format {output.style}": output.style not in ("table", "json", "markdown"),
        f"--plot {output.plot}": output.plot is not None and output.plot.suffix.lower() != ".html",
        f"--out {output.out}": output.out is not None and output.out.suffix.lower() not in OUTPUT_SUFFIXES,
    }
    fixes = {"--plot": "name an .html file", "--out": "name a .json or .md file"}
    for name in (name for name, is_given in unsupported.items() if is_given):
        fix = fixes.get(name.partition(" ")[0], f"leave out {name.partition(' ')[0]}")
        raise BadOption(f"{name} cannot be used with --candidates", fix=fix)


def write_files(report: SearchReport, output: BenchOutput, *, model: str) -> None:
    """Write the result and the plot into the files of `--out` and `--plot`."""
    renders: Mapping[str, Callable[[], str]] = {
        ".json": lambda: report.model_dump_json(indent=2) + "\n",
        ".md": lambda: render_search_markdown(report),
        ".html": lambda: render_search(report, model=model),
    }
    for file in (output.out, output.plot):
        if file is not None:
            write_file(file, renders[file.suffix.lower()]())


def write_file(file: Path, text: str) -> None:
    """Write a text into a file atomically; raise `OutOfDisk` or `OutputNotWritable`."""
    with report_unwritable(file, fix="name another file"):
        write_atomically(file, text)


def print_search(report: SearchReport, output: BenchOutput) -> None:
    """Print the result as JSON, Markdown or tables."""
    if output.style == "json":
        print_json("search/1", json_data(report))
        return
    if output.style == "markdown":
        say(render_search_markdown(report), end="")
        return
    console = stdout()
    console.print(search_view(report, width=console.width))
