"""A manifest is sealed by the digest of its other fields, and its bytes have the same format as in earlier versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest
from blake3 import blake3
from pydantic import ValidationError

from thunder_core.backend.cache.manifest import EntryManifest
from thunder_core.foundation.storage.manifest import (
    FileFacts,
    SealedManifest,
    ends_with_seal,
    facts_of_content,
    facts_of_file,
    files_of,
)

SEALED_MANIFEST = (  # the bytes of a manifest with schema version 2
    b'{\n "schema_version": 2,\n "executor": "inductor",\n "fields": {\n  "region": "f00d"\n },\n'
    b' "label": "layer 0",\n "model": "Net",\n "created": "2026-01-01T00:00:00Z",\n "replaced": "",\n'
    b' "files": {\n  "kernel.so": {\n'
    b'   "size": 3,\n   "digest": "0000000000000000000000000000000000000000000000000000000000000000"\n  }\n },\n'
    b' "digest": "a32b0c10c253c71d9d8cb7bbf94cc0530eb138c2b00d94d36c90d79a692ac856"\n}\n'
)


class LabelledManifest(SealedManifest):
    leaves_out_defaults: ClassVar[bool] = True

    name: str
    label: str = ""
    files: dict[str, FileFacts]
    digest: str = ""


def write_files_and_seal(folder: Path) -> LabelledManifest:
    """Write two files to a folder, and return their sealed manifest."""
    (folder / "inner").mkdir()
    (folder / "a.txt").write_bytes(b"a")
    (folder / "inner" / "empty").write_bytes(b"")
    return LabelledManifest(name="two files", files=files_of(folder)).with_own_digest()


def test_the_manifest_of_a_cache_entry_keeps_its_format() -> None:
    manifest = EntryManifest(
        schema_version=2,
        executor="inductor",
        fields={"region": "f00d"},
        label="layer 0",
        model="Net",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        files={"kernel.so": FileFacts(size=3, digest="0" * 64)},
    )
    assert manifest.with_own_digest().to_bytes() == SEALED_MANIFEST
    assert EntryManifest.model_validate_json(SEALED_MANIFEST).is_sealed


def test_every_file_below_a_folder_is_listed_with_its_size_and_digest(tmp_path: Path) -> None:
    manifest = write_files_and_seal(tmp_path)
    assert manifest.files == {"a.txt": facts_of_content(b"a"), "inner/empty": facts_of_content(b"")}
    assert facts_of_file(tmp_path / "a.txt") == FileFacts(size=1, digest=blake3(b"a").hexdigest())


def test_a_change_of_any_byte_breaks_the_seal(tmp_path: Path) -> None:
    content = write_files_and_seal(tmp_path).to_bytes()
    assert ends_with_seal(content)
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 1
        assert not ends_with_seal(bytes(changed)), index


def test_a_changed_or_unsealed_manifest_is_not_sealed(tmp_path: Path) -> None:
    manifest = write_files_and_seal(tmp_path)
    assert manifest.is_sealed
    assert not manifest.model_copy(update={"name": "other"}).is_sealed
    assert not LabelledManifest(name="no digest", files={}).is_sealed


def test_default_values_are_left_out_of_the_bytes(tmp_path: Path) -> None:
    assert b'"label"' not in write_files_and_seal(tmp_path).to_bytes()


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValidationError):
        FileFacts(size=-1, digest="")
