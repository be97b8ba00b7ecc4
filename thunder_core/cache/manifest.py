"""The manifest of an entry: its key, its label, and the size and digest of every file; sealed by its own digest."""

from __future__ import annotations

import json

from blake3 import blake3
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from thunder_core.cache.key import SCHEMA_VERSION, Key

MANIFEST = "manifest.json"


class Damage(Exception):
    """The reason why an entry cannot be used; it is caught where the entry is dropped, and never reaches a user."""

    def __init__(self, what: str) -> None:
        """Say what is wrong; names and values from the disk may be no text that can be printed."""
        super().__init__(what.encode(errors="backslashreplace").decode())


class Facts(BaseModel):
    """Frozen data that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileFacts(Facts):
    """A file's size in bytes and its BLAKE3 digest in hexadecimal."""

    size: int = Field(ge=0)
    digest: str


class Manifest(Facts):
    """Everything about an entry that is not in one of its files; `digest` is that of the manifest without itself.

    `replaced` says what was wrong with the entry that was here before, where one had to be dropped.
    """

    schema_version: int
    executor: str
    fields: dict[str, str]
    label: str
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
        """The bytes of all files together, without the manifest."""
        return sum(file.size for file in self.files.values())

    def sealed(self) -> Manifest:
        """The manifest with its own digest."""
        return self.model_copy(update={"digest": self._own_digest()})

    @property
    def is_sealed(self) -> bool:
        """Whether the digest is that of the content."""
        return self.digest == self._own_digest()

    def to_bytes(self) -> bytes:
        """The one form in which this manifest is written."""
        return (json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()

    def _own_digest(self) -> str:
        return digest_of(self.model_copy(update={"digest": ""}).to_bytes())


def manifest_of(content: bytes, digest: str) -> Manifest:
    """The manifest in some bytes, which is that of the key with this digest; raises `Damage`."""
    refuse_other_schemas(content)
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise Damage(f"{MANIFEST} is not one of Thunder's: {error.errors()[0]['msg']}") from error
    if not manifest.is_sealed or manifest.to_bytes() != content:
        raise Damage(f"{MANIFEST} has been changed since it was written")
    if manifest.key.digest != digest:
        raise Damage(f"{MANIFEST} is that of another entry, {manifest.key.digest[:12]}")
    return manifest


def refuse_other_schemas(content: bytes) -> None:
    """Raise `Damage` for a schema that this version does not know, before anything else of it is read."""
    try:
        version = json.loads(content)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damage(f"{MANIFEST} is not JSON of Thunder's") from error
    if type(version) is not int or version != SCHEMA_VERSION:
        raise Damage(f"{MANIFEST} has the schema {version}, and this version of Thunder reads {SCHEMA_VERSION}")


def digest_of(content: bytes) -> str:
    """The BLAKE3 digest of some bytes, in hexadecimal."""
    return blake3(content).hexdigest()
