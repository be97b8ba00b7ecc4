"""Replace the report of an artifact atomically; all other files stay the same."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.errors import ArtifactError, OutputExists
from thunder_core.foundation.storage.manifest import MANIFEST, facts_of_file
from thunder_core.workflow.artifact.format.artifact_folder import atomic_folder
from thunder_core.workflow.artifact.format.manifest import FORMER_SIGNATURE, SIGNATURE, Manifest, ValidationState
from thunder_core.workflow.artifact.format.read import Artifact, read_manifest
from thunder_core.workflow.artifact.format.signature import is_signed
from thunder_core.workflow.report import PAGES, Report, write_report


@dataclass(frozen=True)
class Revision:
    """The manifest of a revised artifact, and whether the revision dropped signatures of the old manifest."""

    manifest: Manifest
    signature_dropped: bool


def revise(artifact: Artifact, report: Report | None, validation: ValidationState) -> Revision:
    """Replace the report and the validation state of an artifact; raise the errors of `write_artifact`.

    If the process is interrupted, the folder contains either the old artifact or the new one. Raises `OutputExists`,
    and changes nothing, if another artifact has replaced this one since it was opened.
    """
    was_signed = False

    def require_unchanged(folder: Path) -> None:
        nonlocal was_signed
        require_same(artifact, folder)
        was_signed = is_signed(folder)

    with atomic_folder(artifact.folder, force=True, require_free=require_unchanged) as new:
        shutil.copytree(artifact.folder, new, symlinks=True, dirs_exist_ok=True, copy_function=link_or_copy)
        require_same(artifact, new)
        for name in (MANIFEST, SIGNATURE, FORMER_SIGNATURE, *(PAGES if report else ())):
            (new / name).unlink(missing_ok=True)  # a hard link to the old file, which must not be written to
        if report is not None:
            write_report(report, new)
        pages = {name: facts_of_file(new / name) for name in (PAGES if report else ())}
        manifest = artifact.manifest.model_copy(
            update={"validation": validation, "files": {**artifact.manifest.files, **pages}}
        ).with_own_digest()
        (new / MANIFEST).write_bytes(manifest.to_bytes())
    return Revision(manifest, was_signed)


def require_same(artifact: Artifact, folder: Path) -> None:
    """Raise `OutputExists` if the artifact in a folder is not the artifact that was opened, or if there is none."""
    try:
        is_same = read_manifest(folder).digest == artifact.manifest.digest
    except ArtifactError:
        is_same = False
    if not is_same:
        raise OutputExists(
            f"{artifact.folder} was kept: another artifact replaced it during the validation",
            fix="validate again: the result is about the earlier artifact",
        )


def link_or_copy(old: str, new: str) -> None:
    """Make a hard link to a file, or a copy if the file system has no links."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)


def can_be_revised(folder: Path) -> bool:
    """Whether this process may write to the folder that contains an artifact."""
    return os.access(folder.parent, os.W_OK | os.X_OK)
