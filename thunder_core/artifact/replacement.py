"""Whether a folder that is there may give way to a new artifact: only one of which every file is Thunder's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from thunder_core.artifact.manifest import MANIFEST, SIGNATURE, Manifest
from thunder_core.artifact.read import read_manifest
from thunder_core.errors import ArtifactError, OutputExists

NAMED = 5  # strange files that a message names


def require_replaceable(folder: Path) -> None:
    """Raise `OutputExists` for anything but an empty folder and an artifact in which nobody has put files of theirs.

    An artifact is told by its manifest: by its schema, its form and the digest of itself. Its other files may be
    damaged; which ones are its own is what the manifest says.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise no_artifact(folder, "it is no folder")
    if not any(folder.iterdir()):
        return
    try:
        manifest = read_manifest(folder)
    except ArtifactError as error:
        raise no_artifact(folder, error.what) from error
    if strange := sorted(strange_files(folder, manifest)):
        more = f" and {len(strange) - NAMED} more" if len(strange) > NAMED else ""
        raise OutputExists(
            f"{folder} was kept: it holds files that are not the artifact's: {', '.join(strange[:NAMED])}{more}",
            fix="move them elsewhere, or name another folder with --out",
        )


def strange_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Everything below a folder that is no folder, and that the manifest does not list."""
    own = {MANIFEST, SIGNATURE, *manifest.files}
    for place, folders, files in os.walk(folder, onerror=_raise):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*files, *links):
            path = (Path(place) / name).relative_to(folder).as_posix()
            if path not in own:
                yield path


def _raise(error: OSError) -> None:
    raise error


def no_artifact(folder: Path, why: str) -> OutputExists:
    """The error for something that stands where an artifact is to be written and is none."""
    return OutputExists(
        f"{folder} is no artifact of Thunder and was kept: {why}; --force replaces only artifacts and empty folders",
        fix="name another folder with --out, or remove it yourself",
    )
