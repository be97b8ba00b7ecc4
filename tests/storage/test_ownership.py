"""Folders of other users, and folders that other users can write, are reported."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from thunder_core.foundation.storage import ownership
from thunder_core.foundation.storage.ownership import fault_of


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        (0o700, ""),
        (0o755, ""),
        (0o775, "can be written by other users"),
        (0o707, "can be written by other users"),
        (0o1777, "can be written by other users"),
    ],
)
def test_writable_by_other_users_is_a_fault(tmp_path: Path, mode: int, fault: str) -> None:
    tmp_path.chmod(mode)
    assert fault_of(tmp_path.stat()) == fault
    tmp_path.chmod(stat.S_IRWXU)


def test_belonging_to_another_user_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "owners", lambda: frozenset({os.geteuid() + 1}))
    assert fault_of(tmp_path.stat()) == f"belongs to another user (number {os.geteuid()})"
