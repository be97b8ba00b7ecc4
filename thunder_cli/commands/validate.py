"""`thunder validate`: compares an artifact with eager PyTorch on the machine that it will run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from thunder_cli import options
from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import json_data, print_json, stderr, stdout
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.settings import Settings
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest, check_validate_request

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.validate import Revalidation


@expand_options
def validate(
    artifact: options.Artifact,
    *,
    request: ValidateRequest,
    settings: Annotated[Settings, ("trust-remote-code",)],
    trust: options.TrustOptions,
    ci: CiOptions,
    json: options.Json = False,
    quiet: Annotated[bool, options.quiet_option("Print only the verdict, without progress and tables.")] = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Validate ARTIFACT against eager PyTorch on new inputs.

    The stored programs of the artifact run; nothing is traced. If all outputs are within tolerance, an artifact whose
    validation is pending is marked as validated, which removes its signatures. Otherwise the artifact is not changed.

    The exit status is 4 if an output is out of tolerance, or has another structure, shape or dtype. NaN, infinite and
    all-zero outputs of eager PyTorch are also refused, unless --allow-non-finite is set.
    """
    from thunder_cli.ci.ci_report import collect_checks

    with quiet_libraries(debug=debug), collect_checks(ci, "validate") as checks:
        from thunder_cli.import_notice import importing_tested_torch
        from thunder_cli.progress import show_progress
        from thunder_core.workflow.artifact.format.read import read_manifest

        check_validate_request(request)
        read_manifest(artifact.expanduser())
        console = stderr(quiet=quiet)
        with importing_tested_torch(console):
            from thunder_core.workflow.pipeline.validate import validate_artifact
        with show_progress(console) as progress:
            consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
            revalidation = validate_artifact(artifact, request, consent=consent, progress=progress)
        from thunder_cli.ci.ci_findings import note_validation

        note_validation(checks, revalidation.validation)
        show(revalidation, json=json, quiet=quiet)


def show(revalidation: Revalidation, *, json: bool, quiet: bool) -> None:
    """Print the results, and the new state of the artifact."""
    from thunder_cli.views.outcome import caveats_view, evaluation_view, findings_view, revalidation_view

    if json:
        data = {"artifact": str(revalidation.artifact), "state": revalidation.state, "written": revalidation.written}
        data["signature_dropped"] = revalidation.signature_dropped
        data["caveats"] = list(revalidation.caveats)
        data["evaluation"] = None if revalidation.evaluation is None else json_data(revalidation.evaluation)
        print_json("validate/1", {**data, "validation": json_data(revalidation.validation)})
        return
    console = stdout()
    if not quiet:
        console.print(findings_view(revalidation.validation, width=console.width))
        for caveat in caveats_view(revalidation.caveats):
            console.print(caveat)
        console.print()
        if revalidation.evaluation is not None:
            console.print(evaluation_view(revalidation.evaluation))
            console.print()
    console.print(
        revalidation_view(revalidation.artifact, revalidation.state, written=revalidation.written), soft_wrap=True
    )
    if revalidation.signature_dropped:
        removed = "removed, because the artifact has changed; sign it again with `thunder sign`"
        console.print(f"signature {removed}", style="yellow", soft_wrap=True)
