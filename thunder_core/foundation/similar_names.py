"""Known names that are similar to an unknown name, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from thunder_core.foundation.errors import UnknownName

ALIKE = 0.6  # the smallest similarity at which a name is suggested
SHORTEST = 3  # the fewest letters of a name for which longer names with the same beginning are suggested


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Return up to three known names (`candidates`), the most similar to a name, ignoring case."""
    by_lower = {each.lower(): each for each in sorted(candidates)}
    similar = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=ALIKE)
    longer = (each for each in by_lower if min(len(each), len(name)) >= SHORTEST and is_beginning(each, name.lower()))
    return [by_lower[near] for near in dict.fromkeys((*similar, *longer))][:3]


def is_beginning(left: str, right: str) -> bool:
    """Whether one of two names is the beginning of the other."""
    return left.startswith(right) or right.startswith(left)


def did_you_mean(name: str, candidates: Iterable[str], *, dashes: str = "") -> str:
    """Return "did you mean X? " with the most similar names, as the beginning of a fix; empty if no name is similar."""
    near = [f"{dashes}{each}" for each in nearest(name, candidates)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def unknown_name(kind: str, name: str, candidates: Collection[str]) -> UnknownName:
    """Return the error for an unknown name; it suggests the most similar known names."""
    return UnknownName(
        f"there is no {kind} called {name!r}",
        fix=f"{did_you_mean(name, candidates)}known: {', '.join(sorted(candidates)) or 'none'}",
    )
