"""An artifact's folder is complete or absent."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from thunder_core.foundation.errors import OutOfDisk, OutputExists, OutputNotWritable
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.storage import folder as storage_folder
from thunder_core.foundation.storage.manifest import FileFacts
from thunder_core.workflow.artifact.format import artifact_folder
from thunder_core.workflow.artifact.format.artifact_folder import atomic_folder
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION, CompilerFacts, Manifest

OPTIONS = {
    "cache": "constant values",
    "sharp_edges": "allow",
    "functional": False,
    "data_dependent": "guard",
    "memory_budget": 1.0,
    "max_programs": 64,
    "symbolic": (),
    "without": (),
}


def write(folder: Path, text: str = "new", *, force: bool = False) -> None:
    """Write a minimal artifact whose recipe is the text."""
    with atomic_folder(folder, force=force) as new:
        (new / "manifest.json").write_bytes(manifest(text))


def manifest(text: str, **facts: object) -> bytes:
    return (
        Manifest(
            schema_version=SCHEMA_VERSION,
            thunder="1",
            created=datetime(2026, 1, 1, tzinfo=UTC),
            recipe=text,
            subject="f",
            fingerprint="",
            torch="2",
            compiler=CompilerFacts(options=CompileOptions(**OPTIONS)),
            programs=(),
            **facts,
        )
        .with_own_digest()
        .to_bytes()
    )


def write_artifact_in(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["recipe"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_artifact_is_written_with_its_parent_folders(tmp_path):
    write(tmp_path / "a" / "b")
    assert write_artifact_in(tmp_path / "a" / "b") == "new"
    assert names(tmp_path / "a") == ["b"]


def test_existing_artifact_is_kept(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.raises(OutputExists, match="was kept"):
        write(tmp_path / "a")
    assert write_artifact_in(tmp_path / "a") == "old"


def test_force_replaces_an_artifact_as_a_whole(tmp_path):
    write(tmp_path / "a", "old")
    listed = {"traces/0.py": FileFacts(size=9, digest="0" * 64), "gone.py": FileFacts(size=9, digest="0" * 64)}
    (tmp_path / "a" / "manifest.json").write_bytes(manifest("old", files=listed))
    (tmp_path / "a" / "traces").mkdir()
    (tmp_path / "a" / "traces" / "0.py").write_text("damaged")  # the file belongs to the artifact, whatever its content
    write(tmp_path / "a", force=True)
    assert names(tmp_path / "a") == ["manifest.json"]
    assert names(tmp_path) == ["a"]


FOREIGN_MANIFESTS = {
    "a browser extension's": b'{\n "manifest_version": 3,\n "name": "mine",\n "version": "1.0"\n}\n',
    "a web app's": b'{"short_name": "mine", "start_url": "/", "icons": []}',
    "one that only begins so": f'{{\n "schema_version": {SCHEMA_VERSION},\n "name": "mine"\n}}\n'.encode(),
    "an image's": b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}',
    "none": b"",
    "one that was edited": manifest("old").replace(b'"recipe": "old"', b'"recipe": "new"'),
    "a later version's": manifest("old").replace(b'"schema_version": %d' % SCHEMA_VERSION, b'"schema_version": 999'),
}


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("kind", FOREIGN_MANIFESTS)
def test_folders_whose_manifest_is_another_programs_are_kept(tmp_path, kind, force):
    """Without force, too, the error does not advise to replace the folder."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_bytes(FOREIGN_MANIFESTS[kind])
    (tmp_path / "a" / "src.js").write_text("mine")
    with pytest.raises(OutputExists, match="is not an artifact and was kept") as refused:
        write(tmp_path / "a", force=force)
    assert "replace this one" not in refused.value.fix
    assert names(tmp_path / "a") == ["manifest.json", "src.js"]
    assert names(tmp_path) == ["a"]


def test_force_keeps_an_artifact_that_holds_foreign_files(tmp_path):
    write(tmp_path / "a", "old")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "a" / "link").symlink_to(elsewhere)
    (tmp_path / "a" / "traces").mkdir()
    (tmp_path / "a" / "traces" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExists, match=r"the artifact does not list: link, traces/notes\.txt\n") as refused:
        write(tmp_path / "a", force=True)
    assert "move these files" in refused.value.fix
    assert (write_artifact_in(tmp_path / "a"), names(tmp_path / "a")) == ("old", ["link", "manifest.json", "traces"])


def test_files_added_while_an_artifact_is_written_are_kept(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.raises(OutputExists), atomic_folder(tmp_path / "a", force=True) as new:
        (new / "manifest.json").write_bytes(manifest("new"))
        (tmp_path / "a" / "notes.txt").write_text("mine")
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert names(tmp_path) == ["a"]


def test_force_replaces_nothing_but_artifacts_and_empty_folders(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("mine", "file", "link"):
        with pytest.raises(OutputExists, match="not an artifact"):
            write(tmp_path / name, force=True)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", force=True)
    assert names(tmp_path) == ["empty", "file", "link", "mine"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken"), SystemExit(1)])
def test_interrupted_writing_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)), atomic_folder(tmp_path / "made" / "a", force=False) as new:
        (new / "half").write_text("")
        raise error
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "raised"), [(errno.ENOSPC, OutOfDisk), (errno.EDQUOT, OutOfDisk), (errno.EROFS, OutputNotWritable)]
)
def test_a_disk_that_fills_up(tmp_path, number, raised):
    with pytest.raises(raised), atomic_folder(tmp_path / "a", force=False) as new:
        (new / "half").write_text("")
        raise OSError(number, os.strerror(number))
    assert names(tmp_path) == []


def test_old_artifact_is_put_back_when_the_new_one_cannot_replace_it(tmp_path, monkeypatch):
    write(tmp_path / "a", "old")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(errno.EIO, "no")
        return rename(self, target)

    # Like a system that cannot exchange names.
    monkeypatch.setattr(storage_folder, "exchange_names", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputNotWritable):
        write(tmp_path / "a", force=True)
    assert write_artifact_in(tmp_path / "a") == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems rename twice")
def test_old_and_new_artifact_are_exchanged_in_one_step(tmp_path, monkeypatch):
    write(tmp_path / "a", "old")
    monkeypatch.setattr(Path, "rename", lambda self, target: pytest.fail("there was a moment without either"))
    write(tmp_path / "a", "new", force=True)
    assert write_artifact_in(tmp_path / "a") == "new"
    assert names(tmp_path) == ["a"]


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_a_dead_process_are_removed(tmp_path):
    dead = dead_process()
    (tmp_path / f".a.{storage_folder.HOST}-{dead}-00000000.new").mkdir()
    (tmp_path / f".b.{storage_folder.HOST}-{dead}-00000000.new").mkdir()
    with storage_folder.new_locked_folder(tmp_path / "a") as held:
        write(tmp_path / "a")
        assert names(tmp_path) == [held.name, f".b.{storage_folder.HOST}-{dead}-00000000.new", "a"]


def test_artifact_that_a_dead_process_moved_away_is_put_back(tmp_path):
    old = tmp_path / f".a.{storage_folder.HOST}-{dead_process()}-00000000.old"
    old.mkdir()
    (old / "manifest.json").write_bytes(manifest("old"))
    with pytest.raises(OutputExists):
        write(tmp_path / "a")
    assert write_artifact_in(tmp_path / "a") == "old"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable):
        write(tmp_path / "file" / "a")


def test_lack_of_disk_space_is_reported_in_fitting_units(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_folder.shutil, "disk_usage", lambda folder: SimpleNamespace(free=300 << 10))
    with pytest.raises(OutOfDisk, match=r"the weights need 1\.50 MiB, but the disk of .* has 300 KiB free"):
        artifact_folder.require_room(tmp_path, 3 << 19)


def test_an_error_in_the_block_is_not_reported_as_an_error_of_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="weights"), atomic_folder(tmp_path / "a", force=False):
        (tmp_path / "weights").read_bytes()
    with pytest.raises(OutputNotWritable, match="cannot be written"), atomic_folder(tmp_path / "a", force=False) as new:
        (new / "missing" / "file").write_bytes(b"")
    assert names(tmp_path) == []
