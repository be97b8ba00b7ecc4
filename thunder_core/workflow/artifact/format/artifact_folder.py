"""The folder of an artifact: it is written atomically, and it may replace only an artifact or an empty folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from thunder_core.foundation.errors import ArtifactError, OutOfDisk, OutputExists, OutputNotWritable
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.folder import RequireFree, replaced_folder
from thunder_core.foundation.storage.full_disk import report_full_disk
from thunder_core.foundation.storage.manifest import MANIFEST, require_outside_artifacts
from thunder_core.foundation.storage.plain_file import reason_of
from thunder_core.workflow.artifact.format.manifest import FORMER_SIGNATURE, SIGNATURE, Manifest
from thunder_core.workflow.artifact.format.read import Artifact, damage_error, read_manifest
from thunder_core.workflow.report import number_format

MAX_NAMED_FILES = 5  # the most unknown files that a message names


@contextmanager
def atomic_folder(folder: Path, *, force: bool, require_free: RequireFree | None = None) -> Iterator[Path]:
    """Yield a new folder next to `folder`, which is renamed to `folder` if the block succeeds, and removed if it fails.

    If `force` is set, an existing artifact is replaced at the end, but only if its folder contains no other files.
    `require_free` replaces this check: it is called with the path of the existing folder, and again after the folder
    was moved, when nobody can change it by its name. Raises `OutputExists`, `OutputNotWritable` and `OutOfDisk`. Other
    errors of the block pass through, including errors about files elsewhere.
    """
    folder = absolute(folder)
    require_outside_artifacts(folder)
    require = require_free or (lambda directory: refuse_existing(folder, force=force, existing=directory))
    require(folder)
    errors_elsewhere: list[OSError] = []
    try:
        with report_full_disk(f"{folder} was not written"), replaced_folder(folder, require) as new:
            try:
                yield new
            except OSError as error:
                errors_elsewhere.extend([] if is_about(error, new) else [error])
                raise
    except OSError as error:
        if error in errors_elsewhere:
            raise
        raise OutputNotWritable(
            f"{folder} cannot be written: {reason_of(error)}", fix="name a writable folder"
        ) from error


def is_about(error: OSError, folder: Path) -> bool:
    """Whether an error is about a file in a folder, or names no file."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes | PathLike)]
    return not names or any(Path(os.fsdecode(name)).is_relative_to(folder) for name in names)


def refuse_existing(folder: Path, *, force: bool, existing: Path | None = None) -> None:
    """Raise `OutputExists` if the folder exists and may not be replaced: only artifacts and empty folders may be.

    `existing` is the current path of the folder, if the folder has been moved.
    """
    existing = existing or folder
    if not (existing.exists() or existing.is_symlink()):
        return
    require_replaceable(folder, existing)
    if not force:
        raise OutputExists(
            f"{folder} exists and was kept", fix="name another folder with --out, or replace this one with --force"
        )


def require_room(folder: Path, size: int) -> None:
    """Raise `OutOfDisk` if a folder's disk has less free space than `size` bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutOfDisk(
            f"the weights need {number_format.size(size)}, "
            f"but the disk of {folder.parent} has {number_format.size(free)} free",
            fix="free disk space, name a folder on another disk, or leave out the weights",
        )


def require_replaceable(folder: Path, existing: Path) -> None:
    """Raise `OutputExists` unless a folder is empty, or an artifact without additional files.

    `folder` is the path for messages, and `existing` the current path. An artifact is recognized by its manifest: by
    its schema, its form and its own digest. The other files of the artifact may be damaged; the manifest lists them.
    """
    if not existing.is_dir() or existing.is_symlink():
        raise not_replaceable_error(folder, "it is not a folder")
    if not any(existing.iterdir()):
        return
    try:
        manifest = read_manifest(existing)
    except ArtifactError as error:
        raise not_replaceable_error(folder, error.what) from error
    if unknown := sorted(unlisted_files(existing, manifest)):
        raise OutputExists(
            f"{folder} was kept: it contains files that the artifact does not list: {shorten_paths(unknown)}",
            fix="move these files elsewhere, or name another folder with --out",
        )


def unlisted_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield the paths of the files and links in a folder that are not in the manifest."""
    listed_files = {MANIFEST, SIGNATURE, FORMER_SIGNATURE, *manifest.files}
    for directory, folders, files in os.walk(folder, onerror=_raise):
        links = [name for name in folders if (Path(directory) / name).is_symlink()]
        for name in (*files, *links):
            path = (Path(directory) / name).relative_to(folder).as_posix()
            if path not in listed_files:
                yield path


def require_nothing_else(artifact: Artifact) -> None:
    """Raise `ArtifactDamaged` for a file in an artifact's folder that the manifest does not list."""
    if unknown := sorted(unlisted_files(artifact.folder, artifact.manifest)):
        raise damage_error(artifact.folder, f"the manifest does not list {shorten_paths(unknown)}")


def shorten_paths(paths: list[str]) -> str:
    """Return the first paths of a list, and the number of the others."""
    remainder = f" and {len(paths) - MAX_NAMED_FILES} more" if len(paths) > MAX_NAMED_FILES else ""
    return f"{', '.join(paths[:MAX_NAMED_FILES])}{remainder}"


def _raise(error: OSError) -> None:
    raise error


def not_replaceable_error(folder: Path, why: str) -> OutputExists:
    """Return the error for an existing folder that is not an artifact, so that no artifact may replace it."""
    return OutputExists(
        f"{folder} is not an artifact and was kept: {why}; --force replaces only artifacts and empty folders",
        fix="name another folder with --out, or remove it yourself",
    )
