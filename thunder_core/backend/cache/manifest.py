"""The manifest of an entry: its key, its label, and the size and digest of every file; sealed by its own digest."""

from __future__ import annotations

import json

from pydantic import AwareDatetime, ValidationError

from thunder_core.backend.cache.key import SCHEMA_VERSION, Key
from thunder_core.foundation.storage.manifest import MANIFEST, FileFacts, SealedManifest


class Damage(Exception):
    """Raised if an entry cannot be used; the message is the reason. The code that drops the entry catches it."""

    def __init__(self, what: str) -> None:
        """Set the message, in which unprintable characters from the disk are escaped."""
        super().__init__(what.encode(errors="backslashreplace").decode())


class EntryManifest(SealedManifest):
    """The metadata of an entry that its files do not contain; `digest` is the digest of the manifest without `digest`.

    `model` is the name of the model or function that the entry was built for; other models may use the entry too.
    `replaced` describes the damage of the entry that was dropped for this entry, if any.
    """

    schema_version: int
    executor: str
    fields: dict[str, str]
    label: str
    model: str = ""
    created: AwareDatetime
    replaced: str = ""
    files: dict[str, FileFacts]
    digest: str = ""

    @property
    def key(self) -> Key:
        """The key that the entry was built for."""
        return Key(self.executor, self.fields)

    @property
    def size(self) -> int:
        """The total size of all files in bytes, without the manifest."""
        return sum(file.size for file in self.files.values())


def manifest_of(content: bytes, digest: str) -> EntryManifest:
    """Return the manifest in `content`; raise `Damage` unless the manifest belongs to the key with this digest."""
    refuse_other_schemas(content)
    try:
        manifest = EntryManifest.model_validate_json(content)
    except ValidationError as error:
        raise Damage(f"{MANIFEST} is not a manifest of Thunder: {error.errors()[0]['msg']}") from error
    if not manifest.is_sealed or manifest.to_bytes() != content:
        raise Damage(f"{MANIFEST} has been changed since it was written")
    if manifest.key.digest != digest:
        raise Damage(f"{MANIFEST} belongs to another entry, {manifest.key.digest[:12]}")
    return manifest


def refuse_other_schemas(content: bytes) -> None:
    """Raise `Damage` for a schema that this version does not know, before anything else in the manifest is read."""
    try:
        version = json.loads(content)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damage(f"{MANIFEST} is not a JSON manifest of Thunder") from error
    if type(version) is not int or version != SCHEMA_VERSION:
        raise Damage(f"{MANIFEST} has the schema {version}, but this version of Thunder reads {SCHEMA_VERSION}")
