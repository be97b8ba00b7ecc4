"""Damage: a damaged entry is noticed before use, dropped, and built again."""

from __future__ import annotations

import errno
import logging
import shutil
import time

import pytest

from tests.cache.damages import FILES, damages
from tests.cache.samples import Builder, key_of
from thunder_core.backend.cache import Store, read
from thunder_core.backend.cache.manifest import EntryManifest
from thunder_core.backend.cache.read import require_exact_files

ALL = list(damages())
MOST_SECONDS = 0.1


def test_damages_number_about_five_hundred():
    assert len(ALL) > 500
    assert len({name for name, _ in ALL}) == len(ALL)


@pytest.mark.parametrize(("name", "damage"), ALL, ids=[name for name, _ in ALL])
def test_damaged_entry_is_noticed_dropped_and_built_again(store, key, build, caplog, name, damage):
    store.get_or_build(key, build, "layer 0")
    store.get_or_build(key_of("its neighbour"), Builder({"kernel.so": b"other", "wrapper.py": b"words"}))
    folder = store.folder / "entries" / key.digest
    assert set(FILES) == {path.name for path in folder.iterdir()}
    damage(folder)
    before = time.thread_time()
    assert store.get(key) is None
    assert time.thread_time() - before < MOST_SECONDS
    assert store.counts["dropped"] == 1
    assert b"is damaged and was removed" in caplog.text.encode()
    assert not folder.exists()
    assert not folder.is_symlink()
    assert list((store.folder / "building").iterdir()) == []
    assert store.get_or_build(key, build).contents == build.files
    assert build.runs == 2
    assert store.get(key).contents == build.files
    store.get_or_build(key_of("its neighbour"), build)
    assert [record.damage for record in store.verify()] == ["", ""]


@pytest.mark.parametrize(("name", "damage"), ALL[::8], ids=[name for name, _ in ALL[::8]])
def test_damage_is_found_by_verify(store, key, build, name, damage):
    store.get_or_build(key, build, "layer 0")
    store.get_or_build(key_of("its neighbour"), Builder({"kernel.so": b"other", "wrapper.py": b"words"}))
    damage(store.folder / "entries" / key.digest)
    found = {record.digest: record.damage for record in store.verify()}
    assert found[key.digest]
    assert key.digest not in {record.digest for record in store.entries()}


def test_damage_is_logged_and_explained_by_why(store, key, build, caplog):
    store.get_or_build(key, build)
    (store.folder / "entries" / key.digest / "kernel.so").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "thunder_core.backend.cache"):
        store.get_or_build(key, build)
    assert "'kernel.so' has 0 bytes instead of 4096" in caplog.text
    assert store.why(key).replaced == "'kernel.so' has 0 bytes instead of 4096"


def test_an_entry_that_vanishes_is_no_damage(store, key, build):
    store.get_or_build(key, build)
    shutil.rmtree(store.folder / "entries" / key.digest)
    assert store.get(key) is None
    assert store.counts["dropped"] == 0


def test_an_entry_that_is_removed_while_it_is_read_is_no_damage(store, key, build, monkeypatch, caplog):
    store.get_or_build(key, build)

    def removed(folder: int, manifest: EntryManifest) -> None:
        Store(store.folder).clear()
        require_exact_files(folder, manifest)

    monkeypatch.setattr(read, "require_exact_files", removed)
    assert store.get(key) is None
    assert (store.counts["dropped"], caplog.text) == (0, "")


def test_a_link_that_takes_a_files_place_while_it_is_read_is_not_followed(store, key, build, monkeypatch, tmp_path):
    store.get_or_build(key, build)

    def linked(folder: int, manifest: EntryManifest) -> None:
        require_exact_files(folder, manifest)
        path = store.folder / "entries" / key.digest / "kernel.so"
        path.rename(tmp_path / "outside")
        path.symlink_to(tmp_path / "outside")

    monkeypatch.setattr(read, "require_exact_files", linked)
    assert store.get(key) is None
    assert store.counts["dropped"] == 1


def test_an_entry_that_is_replaced_while_it_is_read_is_left_alone(store, key, build, monkeypatch):
    store.get_or_build(key, build)
    undisturbed = read.require_exact_files

    def replaced(folder: int, manifest: EntryManifest) -> None:
        monkeypatch.setattr(read, "require_exact_files", undisturbed)
        Store(store.folder).clear()
        Store(store.folder).get_or_build(key, build)
        undisturbed(folder, manifest)

    monkeypatch.setattr(read, "require_exact_files", replaced)
    assert store.get(key) is None
    assert store.get(key).contents == build.files
    assert build.runs == 2


def test_lack_of_descriptors_is_no_damage(store, key, build, monkeypatch):
    store.get_or_build(key, build)

    def fails(*_arguments):
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(read, "names_in", fails)
        assert store.get(key) is None
        assert [record.damage for record in store.verify()] == [""]
    assert store.get(key) is not None
    assert store.counts["dropped"] == 0
