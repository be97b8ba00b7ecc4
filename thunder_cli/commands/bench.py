"""`thunder bench`: measures an artifact, or a model with a recipe, against eager PyTorch or other contenders.

The command also compares two artifacts or two result files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from thunder_cli import options
from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import stderr
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.results.bench_output import BenchOutput
from thunder_cli.settings import Settings
from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import changed_options
from thunder_core.workflow.models.request.names import is_generation
from thunder_core.workflow.pipeline.request.bench_request import THUNDER, BenchRequest, check_bench_request
from thunder_core.workflow.pipeline.request.search_request import SEARCH

if TYPE_CHECKING:
    from thunder_cli.ci.ci_report import CiReport
    from thunder_core.workflow.artifact.trust.consent import Consent
    from thunder_core.workflow.benchmark import BenchmarkSuite


First = Annotated[
    str | None,
    typer.Argument(
        metavar="ARTIFACT|MODEL|RESULT",
        help="An artifact, a model folder or a Hub name. To compare two result files of --out, pass both."
        " Default: the recipe's sample model.",
        show_default=False,
    ),
]
Second = Annotated[
    str | None,
    typer.Argument(
        metavar="ARTIFACT|RESULT",
        help="A second artifact or result file to compare with the first; both must be artifacts, or both result"
        " files.",
        show_default=False,
    ),
]
Candidates = Annotated[
    bool,
    typer.Option(
        "--candidates",
        metavar=options.FLAG,
        help="Try the candidates of `thunder optimize --search` on MODEL, without writing an artifact. The time limit"
        " is 5 minutes, or the value of --search.",
        rich_help_panel=SEARCH,
    ),
]


@expand_options
def bench(
    model: First = None,
    second: Second = None,
    *,
    settings: Annotated[Settings, (*options.MODEL_SETTINGS, "strict", *options.SEARCH_SETTINGS)],
    candidates: Candidates = False,
    trust: options.TrustOptions,
    bench_request: BenchRequest,
    output: BenchOutput,
    ci: CiOptions,
    json: options.Json = False,
    quiet: options.Quiet = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Benchmark an artifact, or MODEL with a recipe, against eager PyTorch or the contenders of --against.

    Given two artifacts or two result files, the command compares them with each other. With --train, or for an artifact
    that contains a training step, the benchmark measures a training step. Each contender is reported as faster, slower,
    not distinguishable or unstable.

    With --task generate, the benchmark measures the model's `generate`. The report then shows the time to the first
    token, and the time of each further token. The report also shows whether the tokens agree with those of the first
    contender.

    With --candidates, the command tries the candidates of `thunder optimize --search`, and reports which candidate
    would win.
    """
    from thunder_cli.ci.ci_report import collect_checks

    with quiet_libraries(debug=debug), collect_checks(ci, "bench") as checks:
        output = replace(output, style="json" if json else output.style, quiet=quiet)
        output.check()
        if candidates:
            trust.refuse()
            bench_candidates(settings.with_model(model), second, bench_request, output)
            return
        refuse_search(settings)
        bench_request = with_task(settings, bench_request)
        check_bench_request(bench_request, 1 if second is None else 2)
        options_of_run = [f"--{name}" for name in settings.values]
        options_of_run += [*changed_options(bench_request), *changed_options(trust)]
        if not compare_results(model, second, output, options_of_run):
            bench_subject(settings.with_model(model), second, bench_request, trust, output, checks)


def compare_results(first: str | None, second: str | None, output: BenchOutput, options_of_run: list[str]) -> bool:
    """Compare two result files, if both paths are files; return whether they are.

    Raises `BadOption` for a result file without a second path. Also raises `BadOption` if two result files are compared
    and `options_of_run`, the specified options of a measurement, is not empty.
    """
    first_file, second_file = (Path(name or "").expanduser() for name in (first, second))
    if second is None and is_result(first_file):
        raise BadOption(
            f"{first_file} is a result of `thunder bench --out`, and the second result is missing",
            fix=f"name two results to compare them, or measure an artifact or a model with --baseline {first_file}",
        )
    if not (first_file.is_file() and second_file.is_file()):
        return False
    from thunder_cli.results.result_comparison import compare_files

    compare_files(first_file, second_file, output, options_of_run)
    return True


def is_result(path: Path) -> bool:
    """Whether a path is a result file of `thunder bench --out`."""
    if path.suffix != ".json" or not path.is_file():
        return False
    from thunder_core.workflow.benchmark.baseline import read_suite

    try:
        read_suite(path)
    except BadOption:
        return False
    return True


def bench_subject(
    settings: Settings,
    second_artifact: str | None,
    bench_request: BenchRequest,
    trust: options.TrustOptions,
    output: BenchOutput,
    checks: CiReport,
) -> None:
    """Measure a model, an artifact or two artifacts, and report the result and its comparison with the baseline."""
    from thunder_cli.results.gates import earlier_result

    earlier = earlier_result(output, bench_request.runs)
    suite, subject = measure_subject(settings, second_artifact, bench_request, trust, stderr(quiet=output.quiet))
    from thunder_cli.ci.ci_findings import note_suite
    from thunder_cli.results.bench_result import finish_bench

    note_suite(checks, suite)
    finish_bench(suite, earlier, output, subject)


def bench_candidates(
    settings: Settings, second_artifact: str | None, bench_request: BenchRequest, output: BenchOutput
) -> None:
    """Try the candidates of a search on a model, and print the results; raise `BadOption` for a second artifact."""
    from thunder_cli.search.bench_by_search import bench_by_search

    if second_artifact is not None:
        raise BadOption("--candidates accepts one model, but two were specified", fix=f"leave out {second_artifact}")
    bench_by_search(settings, bench_request, output)


def refuse_search(settings: Settings) -> None:
    """Raise `BadOption` for options of a search; the caller has checked that `--candidates` is not set."""
    search_options = [f"--{name}" for name in options.SEARCH_SETTINGS if settings.get(name) is not None]
    if search_options:
        names = ", ".join(search_options)
        verb = "needs" if len(search_options) == 1 else "need"
        raise BadOption(f"{names} {verb} --candidates", fix=f"add --candidates, or leave out {names}")


def with_task(settings: Settings, bench_request: BenchRequest) -> BenchRequest:
    """Return the request with `generates` set if the task is `generate`.

    Raises `BadOption` for a training step with `generate`.
    """
    generates = is_generation(settings.get("task"))
    if generates and settings.get("train"):
        raise BadOption(
            "--task generate and --train exclude each other: a training step generates no text",
            fix="leave out one of the two",
        )
    return replace(bench_request, generates=generates)


def measure_subject(
    settings: Settings,
    second_artifact: str | None,
    bench_request: BenchRequest,
    trust: options.TrustOptions,
    console: Console,
) -> tuple[BenchmarkSuite, str]:
    """Measure two artifacts, one artifact, or a model with a recipe.

    Returns the results, and the name of the candidate that is tested against the others.
    """
    from thunder_core.workflow.artifact.format.read import is_artifact

    folder = Path(settings.get("model") or "").expanduser()
    consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
    if second_artifact is not None:
        suite = measure_artifacts(folder, Path(second_artifact).expanduser(), settings, bench_request, consent, console)
        return suite, suite.reports[0].candidates[1].name
    if settings.get("model") and is_artifact(folder):
        return measure_artifact(folder, settings, bench_request, consent, console), THUNDER
    trust.refuse()
    return measure_model(settings, bench_request, console), THUNDER


def measure_artifacts(
    first: Path, second: Path, settings: Settings, bench_request: BenchRequest, consent: Consent, console: Console
) -> BenchmarkSuite:
    """Measure two artifacts, and compare the second with the first; `device_of_artifact` checks the settings."""
    from thunder_cli.import_notice import importing_tested_torch
    from thunder_cli.progress import show_progress

    require_two_artifacts(first, second)
    devices = [device_of_artifact(folder, settings) for folder in (first, second)]
    with importing_tested_torch(console):
        from thunder_core.workflow.pipeline.bench import bench_artifacts
        from thunder_core.workflow.pipeline.generation_bench import bench_artifacts_generation
    with show_progress(console) as progress:
        if bench_request.generates:
            folders = (first, second)
            return bench_artifacts_generation(
                folders, bench_request, device=devices[0], consent=consent, progress=progress
            )
        return bench_artifacts(first, second, bench_request, device=devices[0], consent=consent, progress=progress)


def measure_artifact(
    folder: Path, settings: Settings, bench_request: BenchRequest, consent: Consent, console: Console
) -> BenchmarkSuite:
    """Measure an artifact; `device_of_artifact` checks the settings."""
    from thunder_cli.import_notice import importing_tested_torch
    from thunder_cli.progress import show_progress

    device = device_of_artifact(folder, settings)
    with importing_tested_torch(console):
        from thunder_core.workflow.pipeline.bench import bench_artifact
        from thunder_core.workflow.pipeline.generation_bench import bench_artifacts_generation
    with show_progress(console) as progress:
        if bench_request.generates:
            return bench_artifacts_generation(
                (folder,), bench_request, device=device, consent=consent, progress=progress
            )
        return bench_artifact(folder, bench_request, device=device, consent=consent, progress=progress)


def device_of_artifact(folder: Path, settings: Settings) -> str | None:
    """Return the device that the user specified for an artifact, or None.

    Raises an error if the folder is not an artifact. Raises `BadOption` for settings of a model, except --device,
    --trust-remote-code and --task generate.
    """
    from thunder_cli.settings import refuse_model_settings
    from thunder_core.workflow.artifact.format.read import read_manifest
    from thunder_core.workflow.models.request.names import spelled_device

    task = {"task"} if is_generation(settings.get("task")) else set()
    refuse_model_settings(settings, folder, allowed={"device", "trust-remote-code", *task})
    read_manifest(folder)
    device = settings.get("device")
    return None if device is None else spelled_device(device)


def measure_model(settings: Settings, bench_request: BenchRequest, console: Console) -> BenchmarkSuite:
    """Measure a model with a recipe."""
    from thunder_cli.checked_request import checked_request
    from thunder_cli.import_notice import importing_tested_torch
    from thunder_cli.progress import show_progress

    request = checked_request(settings, console)
    with importing_tested_torch(console):
        from thunder_core.workflow.pipeline.bench import bench_model
        from thunder_core.workflow.pipeline.generation_bench import bench_generation
    with show_progress(console) as progress:
        benchmark = bench_generation if bench_request.generates else bench_model
        return benchmark(request, bench_request, progress)


def require_two_artifacts(first: Path, second: Path) -> None:
    """Raise `BadOption` unless both folders are artifacts."""
    from thunder_core.workflow.artifact.format.read import is_artifact

    others = [path for path in (first, second) if not is_artifact(path)]
    if not others:
        return
    unknown = [str(path) for path in others if not is_result(path)]
    if unknown:
        problem = f"{' and '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} neither"
    else:
        artifact = second if others == [first] else first
        problem = f"{others[0]} is a result and {artifact} is an artifact"
    raise BadOption(
        f"only two artifacts or two results of `--out` can be compared, but {problem}",
        fix="make an artifact of each with `thunder optimize`, or measure each with `thunder bench --out FILE`",
    )
