"""The recursion limit: an interpreted call takes several native frames, so the native limit is raised while inside."""

import sys

# Native frames that one interpreted call may take.
_NATIVE_FRAMES = 8


class _State:
    """How often the interpreter is entered, and the limit that the program believes in."""

    entered = 0
    limit = 0


def enter() -> int:
    """Raise the native limit; the program's own limit."""
    if not _State.entered:
        _State.limit = sys.getrecursionlimit()
        sys.setrecursionlimit(_State.limit * _NATIVE_FRAMES)
    _State.entered += 1
    return _State.limit


def leave() -> None:
    """Lower the native limit again when the last run ends."""
    _State.entered -= 1
    if not _State.entered:
        sys.setrecursionlimit(_State.limit)


def limit() -> int:
    """What `sys.getrecursionlimit()` gives to the program."""
    return _State.limit if _State.entered else sys.getrecursionlimit()


def set_limit(limit: int) -> None:
    """What `sys.setrecursionlimit(limit)` does for the program."""
    sys.setrecursionlimit(limit * _NATIVE_FRAMES if isinstance(limit, int) and 0 < limit < 1 << 27 else limit)
    _State.limit = limit
