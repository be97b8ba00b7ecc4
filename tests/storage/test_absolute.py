"""Absolute paths contain no `..`, denote the same file, and keep links."""

from __future__ import annotations

from pathlib import Path

import pytest

from thunder_core.foundation.storage.absolute import absolute


def test_a_path_above_the_working_folder_has_no_dots(tmp_path, monkeypatch):
    (tmp_path / "my").mkdir()
    monkeypatch.chdir(tmp_path / "my")
    assert absolute("../own") == tmp_path / "own"
    assert absolute(Path("..")) == tmp_path
    assert absolute("own/../other.thunder") == tmp_path / "my" / "other.thunder"


def test_dots_after_a_link_follow_the_link(tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    assert absolute(tmp_path / "link" / ".." / "own") == tmp_path / "far" / "own"


def test_a_link_in_the_last_part_is_kept(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert absolute(tmp_path / "link") == tmp_path / "link"
    assert absolute(tmp_path / "my" / ".." / "link") == tmp_path / "link"


@pytest.mark.parametrize("path", ["~/own", "~"])
def test_the_home_folder_is_written_out(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute(path) == tmp_path / path[2:]
