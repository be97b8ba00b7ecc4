"""A file is replaced as a whole or stays unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thunder_core.foundation.storage.file import replaced_file, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_old_file_stays_if_the_writing_ends_early(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "old")
    with pytest.raises(OSError, match="full"), replaced_file(tmp_path / "a.json") as new:
        assert new.suffix == ".json"
        new.write_text("half")
        raise OSError("full")
    assert (names(tmp_path), (tmp_path / "a.json").read_text()) == (["a.json"], "old")


def test_the_new_file_has_the_permissions_of_the_old_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "größer")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "größer"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["file", "link"]


def test_a_device_is_written_to_directly() -> None:
    write_atomically(Path(os.devnull), "gone")
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("name", ["a" * 250 + ".json", "ü" * 125, "a." + "b" * 250])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    write_atomically(tmp_path / name, "text")
    assert names(tmp_path) == [name]
