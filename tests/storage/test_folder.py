"""A folder is replaced as a whole or stays unchanged, whatever error occurs."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from thunder_core.foundation.errors import OutOfDisk
from thunder_core.foundation.storage import folder as storage_folder
from thunder_core.foundation.storage.folder import fresh_folder, remove, replaced_folder
from thunder_core.foundation.storage.full_disk import report_full_disk


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def nothing(_: Path) -> None:
    """Allow every replacement."""


def write(folder: Path, text: str) -> None:
    with replaced_folder(folder, nothing) as new:
        (new / "file").write_text(text)


def test_the_new_folder_replaces_the_old(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write(tmp_path / "made" / "a", text)
        assert content(tmp_path) == {"made/a/file": text}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken"), OSError(errno.EIO, "no")])
def test_the_old_folder_stays_if_the_writing_ends_early(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "a", "old")
    with pytest.raises(type(error)), replaced_folder(tmp_path / "a", nothing) as new:
        (new / "file").write_text("half")
        raise error
    assert content(tmp_path) == {"a/file": "old"}


def test_the_old_folder_stays_if_it_may_not_be_replaced_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")

    def refuse(_: Path) -> None:
        assert content(tmp_path / "a") == {"file": "old"}
        raise PermissionError

    with pytest.raises(PermissionError), replaced_folder(tmp_path / "a", refuse) as new:
        (new / "file").write_text("new")
    assert content(tmp_path) == {"a/file": "old"}


@pytest.mark.parametrize("exchanges", [True, False])
def test_files_added_to_the_old_folder_at_the_last_moment_are_kept(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old folder is checked again after it has been moved away, when no process can find it by its name."""
    write(tmp_path / "a", "old")
    if not exchanges:
        monkeypatch.setattr(storage_folder, "exchange_names", lambda one, other: False)
    asked: list[Path] = []

    def require_free(place: Path) -> None:
        asked.append(place)
        if (place / "theirs").exists():
            raise PermissionError
        (place / "theirs").write_text("kept")  # after the first check

    with pytest.raises(PermissionError), replaced_folder(tmp_path / "a", require_free) as new:
        (new / "file").write_text("new")
    assert content(tmp_path) == {"a/file": "old", "a/theirs": "kept"}
    assert asked[0] == tmp_path / "a" != asked[1]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_old_folder_is_not_removed_while_it_may_be_restored(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", "old")
    if not exchanges:
        monkeypatch.setattr(storage_folder, "exchange_names", lambda one, other: False)

    def refuse(place: Path) -> None:
        if place != tmp_path / "a":
            storage_folder.clean_up(tmp_path / "a")  # like another writer when it starts
            raise PermissionError

    with pytest.raises(PermissionError), replaced_folder(tmp_path / "a", refuse) as new:
        (new / "file").write_text("new")
    assert content(tmp_path) == {"a/file": "old"}


def test_only_files_are_synchronized(tmp_path: Path) -> None:
    """A link may have no target, and opening a pipe waits for its other end."""
    with replaced_folder(tmp_path / "a", nothing) as new:
        (new / "link").symlink_to(tmp_path / "nowhere")
        os.mkfifo(new / "pipe")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["link", "pipe"]


def left_behind(folder: Path, kind: str, text: str, process: int = 1) -> Path:
    """The leftover folder of a process that was killed while it wrote."""
    path = folder.parent / f".{folder.name}.{storage_folder.HOST}-{process}-00000000.{kind}"
    path.mkdir()
    (path / "file").write_text(text)
    return path


@pytest.mark.parametrize("process", [1, os.getpid(), 1 << 40], ids=["first", "own", "none"])
def test_unlocked_folders_are_removed_whatever_their_process_number(tmp_path: Path, process: int) -> None:
    left_behind(tmp_path / "a", "new", "half", process)
    write(tmp_path / "a", "new")
    assert content(tmp_path) == {"a/file": "new"}


def test_folder_that_another_process_writes_is_not_touched(tmp_path: Path) -> None:
    """The process holds a lock until it ends. Its process number may belong to another container and is ignored."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with replaced_folder(tmp_path / "a", nothing) as new:
            (new / "file").write_text("theirs")
            os.write(writing, new.name.encode())
            signal.pause()
    theirs = tmp_path / os.read(reading, 1000).decode()
    write(tmp_path / "a", "mine")
    assert content(theirs) == {"file": "theirs"}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    write(tmp_path / "a", "mine again")
    assert content(tmp_path) == {"a/file": "mine again"}


def test_processes_that_clean_up_at_once_put_back_one_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the rename another process may have put the folder back, or created a new one."""
    left_behind(tmp_path / "a", "old", "old")
    rename = Path.rename

    def slow(self: Path, target: Path) -> Path:
        if self.name.endswith(".old"):
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "file").write_text("theirs")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slow)
    storage_folder.clean_up(tmp_path / "a")
    assert content(tmp_path / "a") == {"file": "theirs"}
    storage_folder.clean_up(tmp_path / "a")
    assert content(tmp_path) == {"a/file": "theirs"}


def test_a_folder_removed_before_it_was_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, removed = storage_folder.wait_for_lock, []

    def late(descriptor: int) -> bool:
        if not removed:
            removed.extend(path for path in tmp_path.iterdir() if path.name.endswith(".new"))
            storage_folder.clean_up(tmp_path / "a")
        return hold(descriptor)

    monkeypatch.setattr(storage_folder, "wait_for_lock", late)
    write(tmp_path / "a", "new")
    assert len(removed) == 1
    assert content(tmp_path) == {"a/file": "new"}


def test_nothing_is_cleaned_up_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left_behind(tmp_path / "a", "new", "half")
    monkeypatch.setattr(storage_folder.fcntl, "flock", refuse)
    write(tmp_path / "a", "new")
    assert sorted(content(tmp_path).values()) == ["half", "new"]


def test_target_of_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    write(tmp_path / "place" / "a", "old")
    (tmp_path / "link").symlink_to(tmp_path / "place" / "a")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path) == {"place/a/file": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "place"]


def test_a_neighbouring_link_is_not_taken_for_a_leftover_folder(tmp_path: Path) -> None:
    write(tmp_path / "mine", "kept")
    name = f".a.{storage_folder.HOST}-1-00000000.new"
    (tmp_path / name).symlink_to(tmp_path / "mine")
    write(tmp_path / "a", "new")
    assert content(tmp_path) == {"a/file": "new", "mine/file": "kept"}


def test_a_new_folder_is_removed_unless_it_was_renamed(tmp_path: Path) -> None:
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


def test_a_full_disk_is_reported_with_advice_and_other_errors_pass() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(OutOfDisk, match="the disk is full: nothing was kept") as caught,
        report_full_disk("nothing was kept", advice="; or prune"),
    ):
        raise full
    assert caught.value.fix.endswith("; or prune")
    assert caught.value.__cause__ is full
    with pytest.raises(PermissionError), report_full_disk("nothing was kept"):
        raise PermissionError
