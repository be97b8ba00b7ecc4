"""The report in an artifact, which is read without PyTorch."""

from __future__ import annotations

from pydantic import ValidationError

from thunder_core.workflow.artifact.format.read import Artifact, damage_error, first_of
from thunder_core.workflow.report.contents import Report

REPORT = "report.json"


def read_report(artifact: Artifact) -> Report | None:
    """Return the report of an artifact; None if `thunder_core.save` wrote the artifact without a report."""
    if REPORT not in artifact.manifest.files:
        return None
    try:
        return Report.model_validate_json(artifact.content(REPORT))
    except ValidationError as error:
        raise damage_error(
            artifact.folder, f"{REPORT} is not in the form that Thunder writes: {first_of(error)}"
        ) from error
