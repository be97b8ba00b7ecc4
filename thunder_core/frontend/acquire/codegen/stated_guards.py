"""Guards as programs store them, and the paths that can be read without running user code."""

from __future__ import annotations

from thunder_core.frontend.acquire.outside.guards.containers import ConstantItems
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.module_hooks import OfNamespace
from thunder_core.frontend.acquire.outside.guards.values import Equal, Values
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.requirement import PlainPath, StatedGuard, Step

PLAIN_ROOTS = ("root", "globals")
PLAIN_STEPS = ("item", "entry")


def stated_guard_of(guard: Guard) -> StatedGuard:
    """Return a guard without references to the values of the traced call, as programs store it."""
    return StatedGuard(
        str(guard.path),
        guard.words,
        plain_path=None if isinstance(guard, OfNamespace) else plain_path(guard.path),
        guards_number=isinstance(guard, Equal | Values | ConstantItems) and guard.guards_number,
        guards_tuple=isinstance(guard, Values) or (isinstance(guard, Equal) and type(guard.value) is tuple),
    )


def plain_path(path: Path) -> PlainPath | None:
    """Return the steps of a path that consists of a root, items and entries, so that reading it runs no user code.

    Returns None for other paths.
    """
    steps, current = list[Step](), path
    while current.parent is not None:
        if current.step not in PLAIN_STEPS:
            return None
        steps.append((current.step, current.key))
        current = current.parent
    if current.step not in PLAIN_ROOTS:
        return None
    if current.step == "globals" and (current.key == "?" or type(current.value) is not dict):
        return None
    return ((current.step, str(current.key)), *reversed(steps))
