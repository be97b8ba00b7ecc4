"""Reading an artifact: each file is used only after its digest has been compared with the manifest's."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from thunder_core.foundation.errors import ArtifactDamaged, ArtifactTooNew, ArtifactTooOld, BadOption, NotAnArtifact
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.digest import digest_of, digest_of_file
from thunder_core.foundation.storage.manifest import MANIFEST, ends_with_seal
from thunder_core.foundation.storage.sealed_file import fault_of_digest, fault_of_kind, fault_of_size
from thunder_core.tracing.ir.listing import Listing
from thunder_core.workflow.artifact.format.listing_check import LISTINGS, listing_matches_code
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION, Manifest
from thunder_core.workflow.artifact.format.program_facts import StageFacts

COPY_AGAIN = "copy the artifact again, or make it again with `thunder optimize`"
MAX_MANIFEST = 64 << 20  # bytes
SCHEMA = re.compile(rb'\s*{\s*"schema_version"\s*:\s*([0-9]{1,9})\s*[,}]')  # the first key of every manifest


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest and files have been verified."""

    folder: Path
    manifest: Manifest

    def content(self, name: str) -> bytes:
        """Read a file of the artifact, verify its bytes again, and return them."""
        content, facts = read_inside(self.folder, name), self.manifest.files.get(name)
        if fault := fault_of_digest(digest_of(content), facts.digest if facts else ""):
            raise damage_error(self.folder, f"{name} {fault}")
        return content

    def text(self, name: str) -> str:
        """Read a text file of the artifact, verify its bytes again, and return the text."""
        try:
            return self.content(name).decode()
        except UnicodeDecodeError as error:
            raise damage_error(self.folder, f"{name} is not a text file: {error}") from error

    def source(self, stage: StageFacts) -> str:
        """Return the text of a stage."""
        return self.text(stage.file)

    def listing(self, stage: StageFacts) -> Listing:
        """Return the lines of a stage with metadata; raise `ArtifactDamaged` if they are not the lines that run."""
        return self.listing_from(stage, self.text(stage.lines_file), self.source(stage))

    def listing_from(self, stage: StageFacts, lines: str, source: str) -> Listing:
        """Return the lines of a stage as `listing` does, from the texts of the stage's files."""
        try:
            listing = LISTINGS.validate_json(lines)
        except ValidationError as error:
            raise damage_error(
                self.folder, f"{stage.lines_file} is not in the form that Thunder writes: {first_of(error)}"
            ) from error
        if listing.name != stage.trace or not listing_matches_code(listing, source):
            raise damage_error(self.folder, f"{stage.lines_file}, which is displayed, differs from {stage.file}")
        return listing


def is_artifact(path: Path) -> bool:
    """Whether a path is a folder with a manifest."""
    return (path / MANIFEST).is_file()


def open_artifact(folder: Path, *, later: frozenset[str] = frozenset()) -> Artifact:
    """Open the artifact in a folder, and verify every file against the manifest.

    The files in `later` are verified when they are read; only their sizes are compared now.

    Raises `NotAnArtifact`, `ArtifactTooNew`, `ArtifactTooOld` and `ArtifactDamaged`.
    """
    folder = absolute(folder)
    artifact = Artifact(folder, read_manifest(folder))
    for name, facts in artifact.manifest.files.items():
        verify(folder, name, facts.size, None if name in later else facts.digest)
    return artifact


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an artifact, verified against its own digest."""
    if not is_artifact(folder):
        raise NotAnArtifact(
            f"{folder} has no {MANIFEST}" if folder.is_dir() else f"there is no folder {folder}",
            fix="name a folder written by `thunder optimize` or `thunder_core.save`",
        )
    path = inside(folder, MANIFEST)
    if path.stat().st_size > MAX_MANIFEST:
        raise damage_error(folder, f"{MANIFEST} has {path.stat().st_size} bytes, which is too large for a manifest")
    content = read_inside(folder, MANIFEST)
    require_schema(folder, content)
    if not ends_with_seal(content):
        raise damage_error(folder, f"{MANIFEST} has been changed: its last line is not the digest of the other lines")
    try:
        manifest = Manifest.model_validate_json(content)
        written = manifest.to_bytes()
    except ValidationError as error:
        raise damage_error(folder, f"{MANIFEST} is not in the form that Thunder writes: {first_of(error)}") from error
    except (ValueError, RecursionError, BadOption) as error:
        raise damage_error(folder, f"{MANIFEST} is not in the form that Thunder writes: {error}") from error
    if written != content:
        raise damage_error(folder, f"{MANIFEST} is not in the form that Thunder writes")
    return manifest


def first_of(error: ValidationError) -> str:
    """Return the first validation error of the data, with the path to the invalid value."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def require_schema(folder: Path, content: bytes) -> None:
    """Raise `ArtifactTooNew` or `ArtifactTooOld` for a manifest of another schema, before the rest of it is read."""
    schema = SCHEMA.match(content)
    if schema is None or int(schema[1]) < 1:
        raise damage_error(folder, f"{MANIFEST} does not begin with a schema version of Thunder's")
    found = int(schema[1])
    mismatch = f"{folder} has the schema {found}; this version of Thunder reads schema {SCHEMA_VERSION}"
    if found > SCHEMA_VERSION:
        raise ArtifactTooNew(mismatch, fix="upgrade thunder-optimize, or make the artifact again with this version")
    if found < SCHEMA_VERSION:
        raise ArtifactTooOld(mismatch, fix="make the artifact again with this version")


def verify(folder: Path, name: str, size: int, digest: str | None) -> None:
    """Raise `ArtifactDamaged` unless a file is inside the folder with this size and, if not None, this digest."""
    path = inside(folder, name)
    try:
        fault = fault_of_size(path.stat(), size)
        if not fault and digest is not None:
            fault = fault_of_digest(digest_of_file(path), digest)
    except OSError as error:
        raise damage_error(folder, f"{name} cannot be read: {error.strerror or error}") from error
    if fault:
        raise damage_error(folder, f"{name} {fault}")


def inside(folder: Path, name: str) -> Path:
    """Return the path of a plain file inside the artifact; raise `ArtifactDamaged` for links and other paths."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise damage_error(folder, f"{name!r} is not a path inside the artifact")
    path = folder
    for part in parts:
        path = path / part
        try:
            status = path.lstat()
        except (OSError, ValueError) as error:
            raise damage_error(folder, f"{name!r} is missing") from error
        if stat.S_ISLNK(status.st_mode):
            raise damage_error(folder, f"{name!r} is a symbolic link, or its path contains one")
    if fault := fault_of_kind(status):
        raise damage_error(folder, f"{name!r} {fault}")
    return path


def read_inside(folder: Path, name: str) -> bytes:
    """Return the bytes of a file inside the folder."""
    try:
        return inside(folder, name).read_bytes()
    except OSError as error:
        raise damage_error(folder, f"{name} cannot be read: {error.strerror or error}") from error


def damage_error(folder: Path, what: str) -> ArtifactDamaged:
    """Return the error for an artifact that has been changed."""
    return ArtifactDamaged(f"{folder} is damaged: {what}", fix=COPY_AGAIN)
