"""The ownership of folders whose content is trusted: the user's own, to which nobody else can write."""

from __future__ import annotations

import os
import stat

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def owners() -> frozenset[int]:
    """Whose folders are used: the user's own and the administrator's."""
    return frozenset({os.geteuid(), 0})


def fault_of(found: os.stat_result) -> str:
    """The fault in whose a folder is or who can write to it; empty where there is none."""
    if found.st_uid not in owners():
        return f"belongs to another user (number {found.st_uid})"
    return "can be written by other users" if found.st_mode & WRITABLE_BY_OTHERS else ""
