"""The report in an artifact, read without PyTorch."""

from __future__ import annotations

from thunder_core.artifact.read import Artifact
from thunder_core.report.contents import Report

REPORT = "report.json"


def read_report(artifact: Artifact) -> Report | None:
    """The report of an artifact; None where `thunder_core.save` wrote it, which makes none."""
    if REPORT not in artifact.manifest.files:
        return None
    return Report.model_validate_json(artifact.content(REPORT))
