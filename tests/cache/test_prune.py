"""The entries that pruning removes and the entries that it keeps."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest

from tests.cache.samples import Builder, key_of

DAY = 86_400
SIZE = 10_000


@pytest.fixture
def aged(store):
    """Entries `0` to `4`, each of slightly more than 10,000 bytes and last used as many days ago as its name says."""
    for days in (3, 0, 4, 1, 2):
        store.get_or_build(key_of(str(days)), Builder({"kernel.so": os.urandom(SIZE)}), str(days))
        used = time.time() - days * DAY
        os.utime(store.folder / "entries" / key_of(str(days)).digest / "manifest.json", (used, used))
    return store


def labels(records):
    return [record.label for record in records]


def test_entries_are_listed_by_use(aged):
    records = aged.entries()
    assert labels(records) == ["0", "1", "2", "3", "4"]
    assert all(SIZE < record.size < SIZE + 2_000 and record.files == 1 for record in records)
    on_disk = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in aged.folder.glob("entries/*")}
    assert {record.digest: record.size for record in records} == on_disk


def test_least_recently_used_entries_are_removed_first(aged):
    largest = max(record.size for record in aged.entries())
    freed = aged.prune(max_bytes=3 * largest)
    assert (labels(freed.removed), labels(freed.kept)) == (["3", "4"], ["0", "1", "2"])
    assert labels(aged.entries()) == ["0", "1", "2"]
    assert freed.size == sum(record.size for record in freed.removed) > 2 * SIZE
    assert freed.kept_size == sum(record.size for record in aged.entries())


def test_use_refreshes_the_age_of_an_entry(aged):
    aged.get(key_of("4"))
    aged.get_or_build(key_of("3"), Builder())
    assert labels(aged.prune(max_bytes=3 * 12_000).kept) == ["3", "4", "0"]


def test_listing_does_not_count_as_use(aged):
    aged.verify()
    aged.entries()
    aged.why(key_of("4"))
    assert labels(aged.entries()) == ["0", "1", "2", "3", "4"]


def test_entries_are_removed_by_age(aged):
    assert labels(aged.prune(max_age=timedelta(days=2.5)).removed) == ["3", "4"]
    assert labels(aged.prune(max_age=timedelta(days=2.5)).removed) == []
    assert labels(aged.prune(max_age=timedelta(days=1.5), max_bytes=12_000).kept) == ["0"]


def test_a_large_entry_makes_no_room_for_older_entries(store):
    """The latest used entries are kept, not those that happen to fit."""
    for region, size in (("old", 10), ("large", 50_000), ("new", 10)):
        store.get_or_build(key_of(region), Builder({"kernel.so": bytes(size)}), region)
    assert labels(store.prune(max_bytes=20_000).kept) == ["new"]


def test_damaged_entries_are_always_removed(aged):
    (aged.folder / "entries" / key_of("0").digest / "manifest.json").write_text("{}")
    (freed,) = aged.prune(max_bytes=1 << 30).removed
    assert freed.damage
    assert labels(aged.entries()) == ["1", "2", "3", "4"]


def test_a_dry_run_removes_nothing(aged):
    assert len(aged.prune(max_bytes=0, dry_run=True).removed) == 5
    assert len(aged.clear(dry_run=True).removed) == 5
    assert len(aged.entries()) == 5


def test_clear_removes_all_and_what_was_left_behind(aged):
    (aged.folder / "building" / f"{'0' * 64}-12345678").mkdir()
    (aged.folder / "building" / f"{'1' * 64}-12345678").write_text("")
    freed = aged.clear()
    assert (len(freed.removed), len(freed.kept)) == (5, 0)
    assert [list((aged.folder / name).iterdir()) for name in ("entries", "building")] == [[], []]
    assert aged.clear().size == 0


def test_foreign_files_in_the_cache_folder_stay(aged):
    """A folder that was named by mistake may contain folders with the names of the cache."""
    others = [aged.folder / "entries" / "diary.md", aged.folder / "building" / "plan", aged.folder / "locks" / "door"]
    for path in others:
        path.write_text("mine")
    assert (len(aged.entries()), len(aged.verify()), len(aged.clear().removed)) == (5, 5, 5)
    assert [path.read_text() for path in others] == ["mine"] * 3


def test_a_build_that_runs_is_left_alone(store, key, build):
    def pruning(folder):
        store.clear()
        store.prune(max_bytes=0)
        build(folder)

    store.get_or_build(key, pruning)
    assert store.get(key).contents == build.files


@pytest.mark.parametrize("used", [-(1 << 33), 0, 1 << 33, 1 << 50])
def test_times_that_no_calendar_has(aged, used):
    for path in aged.folder.glob("entries/*/manifest.json"):
        os.utime(path, (used, used))
    (aged.folder / "entries" / key_of("0").digest / "manifest.json").write_text("{}")
    os.utime(aged.folder / "entries" / key_of("0").digest, (used, used))
    assert len(aged.entries()) == 5
    assert len(aged.prune(max_age=timedelta(days=1)).kept) == (4 if used > time.time() else 0)
