"""Names that are similar to a name, for messages about an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from thunder_core.foundation.errors import UnknownName

ALIKE = 0.6  # the least similarity of a name to a suggested name
SHORTEST = 3  # letters of a name, from which a name that begins with it may be suggested


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Return up to three of the known names that are most similar to a name, ignoring case."""
    by_lower = {each.lower(): each for each in sorted(candidates)}
    similar = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=ALIKE)
    longer = (each for each in by_lower if min(len(each), len(name)) >= SHORTEST and is_beginning(each, name.lower()))
    return [by_lower[near] for near in dict.fromkeys((*similar, *longer))][:3]


def is_beginning(left: str, right: str) -> bool:
    """Whether one of two names is the beginning of the other."""
    return left.startswith(right) or right.startswith(left)


def did_you_mean(name: str, candidates: Iterable[str], *, dashes: str = "") -> str:
    """Return "did you mean X? " with the nearest names, as the beginning of a sentence; empty if no name is near."""
    near = [f"{dashes}{each}" for each in nearest(name, candidates)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def unknown_name(kind: str, name: str, candidates: Collection[str]) -> UnknownName:
    """Return the error for an unknown name, which suggests the nearest known names."""
    return UnknownName(
        f"there is no {kind} called {name!r}",
        fix=f"{did_you_mean(name, candidates)}known: {', '.join(sorted(candidates)) or 'none'}",
    )
