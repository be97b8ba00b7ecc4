"""The artifact's destination, which is selected and checked before any heavy work."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from pathlib import Path

from thunder_core.foundation.errors import OutputNotWritable
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.manifest import require_outside_artifacts
from thunder_core.foundation.storage.nearest_existing import nearest_existing
from thunder_core.workflow.artifact.format.artifact_folder import refuse_existing
from thunder_core.workflow.pipeline.request.request import Request

SUFFIX = ".thunder"


def choose_destination(out: Path | None, *, force: bool, model: str, recipe: str, parent: Path | None = None) -> Path:
    """Return the requested folder, or an unused name in the folder `parent` (default: the working directory).

    Raises `OutputExists` if the folder exists and may not be replaced, and `OutputNotWritable` if the folder cannot be
    created. No file is left behind.
    """
    named = re.sub(r"[^\w.+-]+", "-", recipe)
    stem = f"{file_stem(model)}-{named}"
    folder = free_name(parent or Path.cwd(), stem) if out is None else absolute(out)
    require_outside_artifacts(folder)
    try:
        refuse_existing(folder, force=force)
        _require_parent(folder)
        return folder
    except OSError as error:
        raise _not_writable(folder.parent if out is None else folder, error.strerror or str(error)) from error


def check_destination(request: Request) -> None:
    """Raise `OutputExists` or `OutputNotWritable` if the artifact could not be written."""
    choose_destination(request.out, force=request.force, model="model", recipe="recipe")


def free_name(parent: Path, stem: str) -> Path:
    """Return `STEM.thunder`, or the first of `STEM-2.thunder`, `STEM-3.thunder`, ... that does not exist."""
    first = parent / f"{stem}{SUFFIX}"
    numbered = (parent / f"{stem}-{number}{SUFFIX}" for number in itertools.count(2))
    return next(path for path in itertools.chain([first], numbered) if not os.path.lexists(path))


def file_stem(name: str) -> str:
    """Return the part of a model's name after the last slash.

    Characters that are not letters, digits, `_`, `.` or `-` are replaced by `-`.
    """
    return re.sub(r"[^\w.-]+", "-", name.rstrip("/").rpartition("/")[2]).strip("-.") or "model"


def require_creatable(folder: Path) -> None:
    """Raise `OutputNotWritable` unless a folder can be created. Nothing remains on the disk."""
    try:
        _require_parent(absolute(folder))
    except OSError as error:
        raise _not_writable(folder, error.strerror or str(error)) from error


def _require_parent(folder: Path) -> None:
    """Raise `OutputNotWritable` or an OSError unless a folder can be created in the nearest existing folder."""
    parent = nearest_existing(folder.parent)
    if not parent.is_dir():
        raise _not_writable(folder, f"{parent} is a file")
    with tempfile.TemporaryDirectory(dir=parent, prefix=".thunder-"):
        pass


def _not_writable(folder: Path, reason: str) -> OutputNotWritable:
    return OutputNotWritable(f"{folder} cannot be written: {reason}", fix="name a writable folder with --out")
