"""Checks that a folder with trusted content belongs to the user and is not writable by others."""

from __future__ import annotations

import os
import stat

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def owners() -> frozenset[int]:
    """Return the ids of the users whose folders are trusted: this user and the administrator."""
    return frozenset({os.geteuid(), 0})


def fault_of(status: os.stat_result) -> str:
    """Return the problem with the owner or the permissions of a folder; empty if there is none."""
    if status.st_uid not in owners():
        return f"belongs to another user (number {status.st_uid})"
    return "can be written by other users" if status.st_mode & WRITABLE_BY_OTHERS else ""
