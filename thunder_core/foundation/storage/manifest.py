"""Sealed manifests: files with the size and digest of every file in a folder, other facts, and their own digest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from thunder_core.foundation.errors import OutputNotWritable
from thunder_core.foundation.storage.digest import digest_of, digest_of_file

MANIFEST = "manifest.json"
SEAL = re.compile(rb',\n "digest": "([0-9a-f]{64})"\n}\n\Z')
LONGEST_SEAL = 128  # bytes that contain the seal at the end of a manifest


class StoredFacts(BaseModel):
    """The base class of the data in manifests, which is frozen and has no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileFacts(StoredFacts):
    """A file's size in bytes and its BLAKE3 digest in hexadecimal."""

    size: int = Field(ge=0)
    digest: str


class SealedManifest(StoredFacts):
    """A manifest whose last field, `digest`, is the digest of the other fields.

    If `leaves_out_defaults` is set, fields that have their default values are not written.
    """

    leaves_out_defaults: ClassVar[bool] = False

    def with_own_digest(self) -> Self:
        """Return the manifest with its own digest."""
        return self.model_copy(update={"digest": self._own_digest()})

    @property
    def is_sealed(self) -> bool:
        """Whether `digest` is the digest of the other fields."""
        return getattr(self, "digest", None) == self._own_digest()

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of this manifest."""
        return text_of(self.model_dump(mode="json", exclude_defaults=self.leaves_out_defaults))

    def _own_digest(self) -> str:
        return digest_of(self.model_copy(update={"digest": ""}).to_bytes())


def has_sealed_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest that ends with a digest; the digest is not checked."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            file.seek(-min(LONGEST_SEAL, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return SEAL.search(file.read()) is not None
    except OSError:
        return False


def require_outside_artifacts(path: Path) -> None:
    """Raise `OutputNotWritable` for a path in a folder with a sealed manifest, which lists all files of the folder."""
    for folder in Path(os.path.realpath(path.expanduser())).parents:
        if has_sealed_manifest(folder):
            raise OutputNotWritable(
                f"{path} is in the artifact {folder}, which would be damaged by another file",
                fix="name a path outside of the artifact",
            )


def text_of(content: Mapping[str, object]) -> bytes:
    """Return plain data as the canonical JSON of manifests."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def ends_with_seal(content: bytes) -> bool:
    """Whether the last line of a manifest is the digest of the lines before it; the content is not parsed."""
    match = SEAL.search(content)
    return match is not None and digest_of(content[: match.start()] + b"\n}\n") == match[1].decode()


def facts_of_content(content: bytes) -> FileFacts:
    """Return the size and digest of some bytes."""
    return FileFacts(size=len(content), digest=digest_of(content))


def facts_of_file(path: Path) -> FileFacts:
    """Return the size and digest of a file."""
    return FileFacts(size=path.stat().st_size, digest=digest_of_file(path))


def files_of(folder: Path) -> dict[str, FileFacts]:
    """Return the size and digest of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): facts_of_file(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
