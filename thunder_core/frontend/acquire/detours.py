"""Detours: calls of `torch.compiler.is_compiling()` that return True, so that the program avoids a tensor value."""

from __future__ import annotations

from types import CodeType

from thunder_core.frontend.interpreter.frame import Frame

Site = tuple[tuple[CodeType, int], ...]  # the running functions with their lines, the innermost first


class Detours:
    """The calls of `torch.compiler.is_compiling()` by a program, and their results.

    `sites` are the sites of the calls that return True. `last` is the site of the last call before a failure. Libraries
    call the function just before they need a value, so True at `last` may avoid a value that is not available.
    """

    def __init__(self, sites: frozenset[Site] = frozenset()) -> None:
        self.sites = sites
        self.last: Site | None = None

    def answer(self, frame: Frame | None, *, is_failing: bool) -> bool:
        """Return the result of `torch.compiler.is_compiling()` for a call in a frame, and note the call.

        The call is not noted if the run `is_failing`. The result is always False for functions of `torch.optim`, whose
        results would differ under Dynamo.
        """
        if frame is None or str(frame.globals.get("__name__")).startswith("torch.optim."):
            return False
        site = site_of(frame)
        if not is_failing:
            self.last = site
        return site in self.sites

    def further(self) -> Detours | None:
        """Return these detours and the detour at the last call; None if the last call already returned True."""
        if self.last is None or self.last in self.sites:
            return None
        return Detours(self.sites | {self.last})


def site_of(frame: Frame | None) -> Site:
    """Return the site of a frame: its own line and the lines of its callers."""
    lines = []
    while frame is not None:
        lines.append((frame.code, frame.lineno))
        frame = frame.back
    return tuple(lines)
