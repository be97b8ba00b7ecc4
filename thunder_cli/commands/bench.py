"""`thunder bench`: an artifact, or a model and a recipe, measured against eager PyTorch and others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from thunder_cli import options
from thunder_cli.console import print_document, stderr, stdout
from thunder_cli.hush import hushed
from thunder_cli.spread import spread
from thunder_core.errors import BadOption, OutputNotWritable

if TYPE_CHECKING:
    from thunder_cli.settings import Settings
    from thunder_core.benchmark import BenchmarkSuite, Comparison
    from thunder_core.pipeline.rules import Contest

PLOTS = (".svg", ".png", ".pdf", ".html")


def complete_contender(incomplete: str) -> list[str]:
    """The contenders whose names begin so; those that were named before a comma are kept."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ("eager", "inductor") if name.startswith(last)]


@spread
def bench(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="ARTIFACT|MODEL",
            help="An artifact, a model's folder or a hub name; without it, the recipe's own sample.",
            show_default=False,
        ),
    ] = None,
    *,
    chosen: options.ModelOptions,
    against: Annotated[
        str,
        typer.Option(
            "--against", metavar="NAMES", help="eager, inductor (torch.compile).", autocompletion=complete_contender
        ),
    ] = "eager",
    batch: Annotated[str, typer.Option("--batch", metavar="N,...", help="Samples in an input.")] = "1",
    seq: Annotated[str | None, typer.Option("--seq", metavar="N,...", help="Tokens in a sample [default: 128]")] = None,
    runs: options.Runs = None,
    warmup: options.Warmup = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the result here, as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result: .svg, .png, .pdf or .html.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="FILE", help="An earlier result to compare with.")
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above", metavar="P%", help="Exit with 5 if more than this of a speed-up is lost [default: 5%]"
        ),
    ] = None,
    strict: options.Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Measure an artifact, or MODEL under a recipe, against eager PyTorch and others.

    With --train, and for an artifact that was made with it, what is measured is a step of training.
    """
    with hushed(debug=debug):
        from thunder_cli.settings import chosen_settings
        from thunder_core.benchmark.baseline import (
            check_against_baseline,
            compare_with_baseline,
            fraction_of,
            read_suite,
        )
        from thunder_core.pipeline.rules import Contest, check_contest

        if fail_above is not None and baseline is None:
            raise BadOption("--fail-above was given without --baseline", fix="name the earlier result with --baseline")
        allowed = fraction_of(fail_above or "5%")
        earlier = None if baseline is None else read_suite(baseline)
        for file in (out, plot):
            require_file(file, PLOTS if file is plot else None)
        settings = chosen_settings(chosen, model=model, strict=strict)
        contest = Contest(
            against=tuple(name.strip() for name in against.split(",") if name.strip()),
            batches=numbers("--batch", batch),
            seqs=(None,) if seq is None else numbers("--seq", seq),
            **{name: value for name, value in (("runs", runs), ("warmup", warmup)) if value is not None},
        )
        check_contest(contest)
        suite = measured(settings, contest, stderr(quiet=quiet))
        keep(suite, out, plot)
        rows = [] if earlier is None else compare_with_baseline(suite, earlier, allowed)
        if not (json and any(row.too_slow for row in rows)):
            show(suite, rows, json=json, quiet=quiet)
        if earlier is not None:
            check_against_baseline(suite, earlier, allowed)


def measured(settings: Settings, contest: Contest, told: Console) -> BenchmarkSuite:
    """Measure what MODEL names: an artifact where its folder holds one, a model otherwise."""
    from thunder_core.artifact.read import is_artifact

    folder = Path(settings.model or "").expanduser()
    if settings.model and is_artifact(folder):
        return measured_artifact(folder, settings, contest, told)
    return measured_model(settings, contest, told)


def measured_artifact(folder: Path, settings: Settings, contest: Contest, told: Console) -> BenchmarkSuite:
    """Measure an artifact, of which the device alone may be another."""
    from thunder_cli.first_word import importing
    from thunder_cli.progress import watching
    from thunder_cli.settings import require_artifacts_own
    from thunder_core.artifact.read import read_manifest
    from thunder_core.models.names import spelled_device

    require_artifacts_own(settings, folder, but={"device"})
    read_manifest(folder)
    device = None if settings.device is None else spelled_device(settings.device)
    with importing(told):
        from thunder_core.pipeline.contest import bench_artifact
    with watching(told) as progress:
        return bench_artifact(folder, contest, device=device, progress=progress)


def measured_model(settings: Settings, contest: Contest, told: Console) -> BenchmarkSuite:
    """Measure a model under a recipe."""
    from thunder_cli.first_word import importing
    from thunder_cli.progress import watching
    from thunder_core.pipeline.foresight import foresee

    request = settings.request()
    foresee(request)
    with importing(told):
        from thunder_core.pipeline.contest import bench_model
    with watching(told) as progress:
        return bench_model(request, contest, progress)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers in a list such as `1,4,16`; raises `BadOption`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BadOption(f"{option} is {text!r}, which is no list of numbers", fix=f"write it as {option} 1,4,16")
    return tuple(dict.fromkeys(int(word) for word in words))


def require_file(file: Path | None, suffixes: tuple[str, ...] | None) -> None:
    """Raise `BadOption` for a suffix that cannot be drawn, `OutputNotWritable` where no file can be made."""
    if file is None:
        return
    if suffixes is not None and file.suffix.lower() not in suffixes:
        raise BadOption(f"--plot {file} has no suffix that can be drawn", fix=f"use one of: {', '.join(suffixes)}")
    if not file.parent.is_dir() or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise OutputNotWritable(f"{file} cannot be written", fix="name a file in a folder that can be written")


def keep(suite: BenchmarkSuite, out: Path | None, plot: Path | None) -> None:
    """Write the files that were asked for."""
    from thunder_cli.views.bench_plot import draw_suite
    from thunder_core.benchmark import write_suite
    from thunder_core.pipeline.calamity import calamities

    with calamities(lambda: "write the result"):
        if out is not None:
            write_suite(suite, out)
        if plot is not None:
            draw_suite(suite, plot)


def show(suite: BenchmarkSuite, rows: Sequence[Comparison], *, json: bool, quiet: bool) -> None:
    """Print the measurements, as JSON that `--baseline` reads or as tables, and the comparisons."""
    from thunder_cli.views.bench import comparison_view, suite_view

    if json:
        print_document(suite.model_dump_json(indent=2))
    else:
        stdout().print(suite_view(suite))
    if rows:
        (stderr(quiet=quiet) if json else stdout()).print(comparison_view(rows))
