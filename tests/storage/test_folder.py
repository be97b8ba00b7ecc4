"""A folder is replaced as a whole or stays as it was, whatever is raised meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from thunder_core.errors import OutOfDisk
from thunder_core.storage.folder import fresh_folder, remove, replaced_folder
from thunder_core.storage.full_disk import full_disk_told


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def nothing() -> None:
    """Whatever is there may be replaced."""


def write(folder: Path, text: str) -> None:
    with replaced_folder(folder, nothing) as new:
        (new / "file").write_text(text)


def test_the_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write(tmp_path / "made" / "a", text)
        assert content(tmp_path) == {"made/a/file": text}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken"), OSError(errno.EIO, "no")])
def test_the_old_one_stays_where_the_writing_ends_early(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "a", "old")
    with pytest.raises(type(error)), replaced_folder(tmp_path / "a", nothing) as new:
        (new / "file").write_text("half")
        raise error
    assert content(tmp_path) == {"a/file": "old"}


def test_the_old_one_stays_where_it_may_not_be_replaced_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")

    def refuse() -> None:
        assert content(tmp_path / "a") == {"file": "old"}
        raise PermissionError

    with pytest.raises(PermissionError), replaced_folder(tmp_path / "a", refuse) as new:
        (new / "file").write_text("new")
    assert content(tmp_path) == {"a/file": "old"}


def test_a_fresh_folder_goes_unless_it_was_given_a_name(tmp_path: Path) -> None:
    with fresh_folder(tmp_path / "one"):
        pass
    with fresh_folder(tmp_path / "two", mode=0o700) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        folder.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "a", "mine")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    remove(tmp_path / "link")
    assert content(tmp_path) == {"a/file": "mine"}
    remove(tmp_path / "a")
    remove(tmp_path / "a")
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_told_with_what_follows_and_other_errors_pass() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(OutOfDisk, match="the disk is full: nothing was kept") as caught,
        full_disk_told("nothing was kept", advice="; or prune"),
    ):
        raise full
    assert caught.value.fix.endswith("; or prune")
    assert caught.value.__cause__ is full
    with pytest.raises(PermissionError), full_disk_told("nothing was kept"):
        raise PermissionError
