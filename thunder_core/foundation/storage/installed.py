"""The folders that installers write to."""

from __future__ import annotations

import site
import sysconfig


def installers_folders() -> list[str]:
    """Return the folders of installed packages, including the user's, and of Python's standard library."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [*(sysconfig.get_path(name) for name in names), *site.getsitepackages(), *users]
