"""Owners of the cache folders: machine code is read only from folders that no other user can write."""

from __future__ import annotations

import stat

import pytest

from tests.cache.samples import FILES
from thunder_core.backend.cache import Store
from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.storage import ownership


def test_folders_are_made_for_the_user_alone(store, key, build):
    store.get_or_build(key, build)
    folders = [store.folder, *(path for path in store.folder.rglob("*") if path.is_dir())]
    assert len(folders) == 5
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o770, 0o1777])
@pytest.mark.parametrize("inner", ["", "entries"])
def test_a_folder_that_others_can_write_to_is_refused(store, key, build, inner, mode):
    store.get_or_build(key, build)
    (store.folder / inner).chmod(mode)
    for use in (lambda: store.get(key), lambda: store.get_or_build(key, build), store.entries, store.verify):
        with pytest.raises(CacheNotUsable, match="can be written by other users"):
            use()
    (store.folder / inner).chmod(0o755)  # read permission for others does no harm
    assert store.get(key).contents == FILES


def test_a_folder_of_another_user_is_refused(store, key, build, monkeypatch):
    store.get_or_build(key, build)
    monkeypatch.setattr(ownership, "owners", lambda: frozenset({store.folder.stat().st_uid + 1}))
    with pytest.raises(CacheNotUsable, match="belongs to another user"):
        store.get(key)


def test_a_link_in_the_place_of_the_entries_is_refused(store, key, build, tmp_path):
    store.get_or_build(key, build)
    (store.folder / "entries").rename(tmp_path / "elsewhere")
    (store.folder / "entries").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheNotUsable, match="a file or a link"):
        store.get(key)


def test_the_store_itself_may_be_a_link(store, key, build, tmp_path):
    """Users put their caches on other disks."""
    store.get_or_build(key, build)
    (tmp_path / "link").symlink_to(store.folder)
    assert Store(tmp_path / "link").get(key).contents == FILES
