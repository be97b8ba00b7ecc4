"""Damage: whatever is done to an artifact's bytes, it is refused before anything of it is used."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

import thunder_core as thunder
from thunder_core.artifact import open_artifact
from thunder_core.artifact.manifest import Manifest
from thunder_core.errors import ArtifactDamaged, ArtifactError, ArtifactTooNew

ROUNDS = int(os.environ.get("THUNDER_FUZZ_ROUNDS", "200"))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(content: bytearray, draw: random.Random) -> bytes:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def cut(content: bytearray, draw: random.Random) -> bytes:
    return bytes(content[: draw.randrange(len(content))])


def lengthen(content: bytearray, draw: random.Random) -> bytes:
    return bytes(content) + draw.randbytes(draw.randint(1, 4))


def drop(content: bytearray, draw: random.Random) -> bytes:
    del content[draw.randrange(len(content))]
    return bytes(content)


def test_flipped_bits_and_truncations_are_always_refused(artifact):
    draw = random.Random(0)
    files = files_of(artifact)
    manifest = artifact / "manifest.json"
    for _ in range(ROUNDS):
        path = draw.choice([manifest, *files])
        sound = path.read_bytes()
        path.write_bytes(draw.choice([flip, flip, cut, lengthen, drop])(bytearray(sound), draw))
        with pytest.raises(ArtifactError):
            open_artifact(artifact)
        path.write_bytes(sound)
    open_artifact(artifact)


def test_a_file_that_is_missing(artifact, model):
    next(artifact.rglob("computation-*.py")).unlink()
    with pytest.raises(ArtifactDamaged, match="is missing"):
        thunder.load(artifact, model)


def test_a_file_that_is_a_link(artifact, model, tmp_path):
    path = next(artifact.rglob("computation-*.py"))
    path.rename(tmp_path / "elsewhere.py")
    path.symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(ArtifactDamaged, match="symbolic link"):
        thunder.load(artifact, model)


def test_a_folder_that_is_a_link(artifact, model, tmp_path):
    (artifact / "traces").rename(tmp_path / "traces")
    (artifact / "traces").symlink_to(tmp_path / "traces")
    with pytest.raises(ArtifactDamaged, match="symbolic link"):
        thunder.load(artifact, model)


def reseal(folder: Path, **changes: object) -> None:
    """A manifest that somebody wrote with care."""
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(manifest.model_copy(update=changes).sealed().to_bytes())


@pytest.mark.parametrize("name", ["../outside.py", "/etc/hostname", "traces/../../outside.py", "", "traces"])
def test_a_path_that_leads_out(artifact, name):
    manifest = Manifest.model_validate_json((artifact / "manifest.json").read_bytes())
    (artifact.parent / "outside.py").write_text("")
    reseal(artifact, files={**manifest.files, name: next(iter(manifest.files.values()))})
    with pytest.raises(ArtifactDamaged):
        open_artifact(artifact)


def test_a_newer_schema(artifact):
    content = json.loads((artifact / "manifest.json").read_text())
    (artifact / "manifest.json").write_text(json.dumps({**content, "schema_version": 2, "news": True}))
    with pytest.raises(ArtifactTooNew, match="reads up to 1"):
        open_artifact(artifact)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"schema_version": "1"}', '{"schema_version": 0}', "[" * 100_000]
)
def test_a_manifest_that_is_none(artifact, text):
    (artifact / "manifest.json").write_text(text)
    with pytest.raises(ArtifactDamaged):
        open_artifact(artifact)


def test_an_unknown_key(artifact):
    content = json.loads((artifact / "manifest.json").read_text())
    (artifact / "manifest.json").write_text(json.dumps({**content, "colour": "red"}))
    with pytest.raises(ArtifactDamaged, match="colour"):
        open_artifact(artifact)


def test_more_files_do_not_matter(artifact):
    (artifact / "notes.txt").write_text("mine")
    open_artifact(artifact)
