"""The error for a name that does not exist, with the nearest names that do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from thunder_core.errors import UnknownName


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that look most like the given one."""
    return difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """An `UnknownName` for a dtype, device or task that suggests what may have been meant."""
    names = sorted(known)
    listed = f"known: {', '.join(names)}"
    near = nearest(name, names)
    fix = f"did you mean {' or '.join(near)}? ({listed})" if near else listed
    return UnknownName(f"there is no {kind} called {name!r}", fix=fix)
