"""Detours: the places where a program is told that it is being compiled, to lead it around the value of a tensor."""

from __future__ import annotations

from types import CodeType
from typing import Any

Site = tuple[tuple[CodeType, int], ...]  # the functions that were running, the innermost first, with their lines


class Detours:
    """The questions of a program whether it is being compiled, and those that are answered with yes.

    `taken` are the sites of an answer yes. `last` is the site that asked last, before anything failed: the one that
    may lead around a value which cannot be had, since libraries ask just before they ask for the value.
    """

    def __init__(self, taken: frozenset[Site] = frozenset()) -> None:
        self.taken = taken
        self.last: Site | None = None

    def asked(self, frame: Any, *, is_failing: bool) -> bool:
        """The answer for the interpreted function that runs in a frame.

        Optimizers ask for what suits Dynamo, and compute something else: for them there is no detour.
        """
        if frame is None or str(frame.globals.get("__name__")).startswith("torch.optim."):
            return False
        site = site_of(frame)
        if not is_failing:
            self.last = site
        return site in self.taken

    def further(self) -> Detours | None:
        """The detours with one more, around what failed last; None where there is none to take."""
        if self.last is None or self.last in self.taken:
            return None
        return Detours(self.taken | {self.last})


def site_of(frame: Any) -> Site:
    """The site of a frame, by its own line and those that lead to it."""
    lines = []
    while frame is not None:
        lines.append((frame.code, frame.lineno))
        frame = frame.back
    return tuple(lines)
