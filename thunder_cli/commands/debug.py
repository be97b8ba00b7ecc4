"""`thunder debug`: finds the first wrong line of a model with a recipe, or of an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from thunder_cli import options
from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import json_data, print_json, stderr, stdout
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.settings import Settings
from thunder_core.workflow.pipeline.request.debug_request import DebugRequest, check_debug_request

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.debug import Diagnosis

SIZES = ("batch", "seq", "cache", "height", "width", "dynamic", "prompt-length", "new-tokens")


@expand_options
def debug(
    subject: options.Subject = None,
    *,
    debug_request: DebugRequest,
    settings: Annotated[Settings, (*options.MODEL_SETTINGS, *SIZES)],
    trust: options.TrustOptions,
    ci: CiOptions,
    json: options.Json = False,
    quiet: Annotated[bool, options.quiet_option("Do not print progress.")] = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Find the first wrong line of the traces, and the transform, executor, derivative or guard that causes it.

    A line is an operation or a fused region. On one input, each line that an executor runs is compared with eager
    PyTorch and with float64. Each transform is compared with the trace before it, and the backward with autograd. For
    an artifact, the stored program for this input is compared with a newly compiled program. With --dynamic, the
    command checks the program that is compiled for the whole range. With --task generate, the command checks each
    program of `generate`. Lines that eager PyTorch runs are not compared. If eager PyTorch runs all lines, the command
    reports that no line was compared.

    The exit status is 1 if a wrong line was found, or with --nan a non-finite value. If none was found, it is 0.
    """
    from thunder_cli.ci.ci_report import collect_checks

    with quiet_libraries(debug=debug), collect_checks(ci, "debug") as checks:
        check_debug_request(debug_request)
        diagnosis = diagnose(settings.with_model(subject), debug_request, trust, stderr(quiet=quiet))
        show(diagnosis, json=json)
        from thunder_cli.ci.ci_findings import note_diagnosis

        note_diagnosis(checks, diagnosis)
        if not diagnosis.is_clean:
            raise typer.Exit(1)


def diagnose(settings: Settings, request: DebugRequest, trust: options.TrustOptions, console: Console) -> Diagnosis:
    """Check the artifact or the model that the settings name."""
    from thunder_cli.import_notice import importing_tested_torch
    from thunder_cli.progress import show_progress
    from thunder_cli.settings import refuse_model_settings
    from thunder_core.workflow.artifact.format.read import is_artifact

    folder = Path(settings.get("model") or "").expanduser()
    if settings.get("model") and is_artifact(folder):
        refuse_model_settings(settings, folder)
        consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
        with importing_tested_torch(console):
            from thunder_core.workflow.pipeline.debug import debug_artifact
        with show_progress(console) as progress:
            return debug_artifact(folder, request, consent=consent, progress=progress)
    trust.refuse()
    return diagnose_model(settings, request, console)


def diagnose_model(settings: Settings, debug_request: DebugRequest, console: Console) -> Diagnosis:
    """Check a model with a recipe."""
    from thunder_cli.checked_request import checked_request
    from thunder_cli.import_notice import importing_tested_torch
    from thunder_cli.progress import show_progress

    request = checked_request(settings, console)
    with importing_tested_torch(console):
        from thunder_core.workflow.pipeline.debug import debug_model
    with show_progress(console) as progress:
        return debug_model(request, debug_request, progress)


def show(diagnosis: Diagnosis, *, json: bool) -> None:
    """Print the results."""
    from thunder_cli.views.diagnosis import diagnosis_view

    if json:
        print_json("debug/1", json_data(diagnosis))
    else:
        stdout().print(diagnosis_view(diagnosis), soft_wrap=True)
