"""The store: a built entry is found again, and a failed build leaves nothing."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import sysconfig
import threading
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.cache.samples import FILES, Builder, key_of
from tests.readme import ROOT
from thunder_core.backend.cache import Store
from thunder_core.foundation.errors import CacheNotUsable, OutOfDisk


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.parent.name != "locks")


def test_missing_entry_is_none_and_creates_nothing(store, key):
    assert store.get(key) is None
    assert store.entries() == []
    assert not store.folder.exists()


def test_built_entry_is_found_by_another_store(store, key, build):
    built = store.get_or_build(key, build, "layer 0")
    other = Store(store.folder)
    found = other.get(key)
    assert built.contents == found.contents == FILES
    assert (found.key, found.label) == (key, "layer 0")
    assert other.get_or_build(key, build, "layer 0").read("kernel.so") == FILES["kernel.so"]
    assert build.runs == 1
    assert (store.counts, other.counts) == ({"misses": 1}, {"hits": 2})


def test_another_key_is_another_entry(store, build):
    for region in ("a", "b", "a"):
        store.get_or_build(key_of(region), build)
    assert build.runs == 2
    assert len(store.entries()) == 2


def test_paths_are_a_private_copy(store, key, build):
    entry = store.get_or_build(key, build)
    paths = entry.files
    assert {name: path.read_bytes() for name, path in paths.items()} == FILES
    assert store.folder not in entry.folder.parents
    assert stat.S_IMODE(entry.folder.stat().st_mode) == 0o700
    store.clear()  # the verified contents stay, whatever happens to the store
    assert entry.files["kernel.so"].read_bytes() == FILES["kernel.so"]


def test_machine_code_is_loaded_from_an_entry(store, key):
    """An extension of the standard library is the kernel."""
    shared = next(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("_bisect.*.so"))
    entry = store.get_or_build(key, Builder({"_bisect.so": shared.read_bytes()}))
    store.clear()
    path = str(entry.files["_bisect.so"])
    loader = ExtensionFileLoader("_bisect", path)
    module = module_from_spec(spec_from_file_location("_bisect", path, loader=loader))
    loader.exec_module(module)
    assert module.bisect_left([1, 2, 3], 2) == 1
    assert module.__file__ == path


def test_every_entry_has_a_path_of_its_own(store, key, build):
    """Loaders return a library that is already loaded for a path that they have seen."""
    first = store.get_or_build(key, build)
    second = store.get(key)
    assert first.files["kernel.so"] != second.files["kernel.so"]


PROGRAM = """
import os, sys
from pathlib import Path
from tests.cache.samples import Builder, key_of
from thunder_core.backend.cache import Store

path = Store(sys.argv[1]).get_or_build(key_of("a"), Builder()).files["kernel.so"]
if child := os.fork():
    os.waitpid(child, 0)
    print(path.exists(), path.parent)
"""


def test_the_copy_goes_with_the_process_and_not_with_its_forks(store):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store.folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    there, folder = done.stdout.split()
    assert there == "True"
    assert not Path(folder).exists()


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(1), OSError(errno.EIO, "no")])
def test_a_build_that_fails_leaves_nothing(store, key, error):
    def failing(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(type(error)):
        store.get_or_build(key, failing)
    assert everything_in(store.folder) == ["building", "entries", "locks"]
    store.get_or_build(key, Builder())


def test_leftovers_of_a_killed_build_are_removed_by_the_next_build(store, key, build):
    store.get_or_build(key_of("another"), build)
    left = store.folder / "building" / f"{key.digest}-12345678"
    left.mkdir()
    (left / "half").write_text("half")
    store.get_or_build(key, build)
    assert list((store.folder / "building").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_in_a_build_is_an_error_and_leaves_nothing(store, key, number):
    def filling(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(number, os.strerror(number))

    with pytest.raises(OutOfDisk) as caught:
        store.get_or_build(key, filling)
    assert caught.value.status == 7
    assert everything_in(store.folder) == ["building", "entries", "locks"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("name", ["mkdir", "kernel.so", "manifest.json"])
def test_a_full_disk_stores_nothing_and_stops_no_build(store, key, build, monkeypatch, caplog, name, number):
    write, mkdir = Path.write_bytes, Path.mkdir

    def full(self: Path) -> None:
        if store.folder in self.parents and name in (self.name, "mkdir"):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", lambda self, content: full(self) or write(self, content))
    if name == "mkdir":
        monkeypatch.setattr(Path, "mkdir", lambda self, *rest, **options: full(self) or mkdir(self, *rest, **options))
    entry = store.get_or_build(key, build)
    assert entry.contents == build.files
    assert store.get(key) is None
    store.get_or_build(key, build)
    assert caplog.text.count("is not cached") == 1
    assert not any("kernel.so" in path for path in everything_in(store.folder))


def make_folder(folder: Path) -> None:
    (folder / "inner").mkdir()


def make_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/hostname")


def make_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def make_nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize("wrong", [make_folder, make_link, make_manifest, make_nothing])
def test_a_build_writes_plain_files(store, key, wrong):
    with pytest.raises(ValueError, match="a build"):
        store.get_or_build(key, wrong)
    assert store.entries() == []


def test_a_file_that_a_compiler_shares_with_its_own_cache_is_copied(store, key, tmp_path):
    (tmp_path / "theirs.so").write_bytes(b"code")

    def linking(folder: Path) -> None:
        os.link(tmp_path / "theirs.so", folder / "kernel.so")

    store.get_or_build(key, linking)
    (tmp_path / "theirs.so").write_bytes(b"cod3")
    assert store.get(key).read("kernel.so") == b"code"


def test_a_store_that_cannot_be_written_serves_all_the_same(tmp_path, key, build, caplog):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "kernels")
    assert store.get_or_build(key, build).contents == FILES
    assert store.get(key) is None
    assert "not cached" in caplog.text
    with pytest.raises(CacheNotUsable, match="cannot be read"):
        store.entries()


def test_store_that_waits_too_long_builds_for_itself(store, key, build, caplog):
    hasty = Store(store.folder, patience=0.05)

    def slow(folder: Path) -> None:
        assert hasty.get_or_build(key, build).contents == FILES
        build(folder)

    store.get_or_build(key, slow)
    assert "has been building for 0.05 seconds" in caplog.text
    assert store.get(key).contents == FILES


def test_threads_that_want_the_same_key_build_it_once(store, key, build):
    gate = threading.Barrier(4)
    found = []

    def want() -> None:
        gate.wait()
        found.append(store.get_or_build(key, build).contents)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, build.runs) == ([FILES] * 4, 1)


def test_the_environment_variable_sets_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    assert Store().folder == tmp_path / "kernels"
    monkeypatch.setenv("THUNDER_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Store().folder.name == "kernels"
    assert Store().folder.parent.name == "thunder"
