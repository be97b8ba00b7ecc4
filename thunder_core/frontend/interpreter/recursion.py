"""The recursion limit. An interpreted call takes several native frames, so native limits are raised during a run."""

import sys
import threading

from thunder_core.frontend.interpreter.native import c_calls_left

# Maximum number of native frames of one interpreted call. 3.11 also counts C calls, which use the C stack.
_NATIVE_FRAMES = 32 if sys.version_info >= (3, 12) else 8
# Maximum depth of calls between C code and Python: 3.13's own value, for a C stack of 8 MB. 3.12.1 allows 1,500.
_C_CALLS = 10_000


class _State:
    """The number of active runs of the interpreter, and the recursion limit that the program sees."""

    entered = 0
    limit = 0


class _Thread(threading.local):
    """The number of active runs in a thread, and by how much its remaining C calls were increased."""

    entered = 0
    added = 0


_thread = _Thread()


def enter() -> int:
    """Raise the native limits, and return the program's own limit."""
    if not _State.entered:
        _State.limit = sys.getrecursionlimit()
        sys.setrecursionlimit(_State.limit * _NATIVE_FRAMES)
    _State.entered += 1
    if not _thread.entered:
        _allow_c_calls()
    _thread.entered += 1
    return _State.limit


def leave() -> None:
    """Restore the native limits when the last run ends."""
    _thread.entered -= 1
    if not _thread.entered and _thread.added:
        c_calls_left().value -= _thread.added
    _State.entered -= 1
    if not _State.entered:
        sys.setrecursionlimit(_State.limit)


def _allow_c_calls() -> None:
    """On Python 3.12, raise this thread's limit of nested C calls to that of 3.13."""
    _thread.added = 0
    if (3, 12) <= sys.version_info < (3, 13):
        calls_left = c_calls_left()
        _thread.added = max(_C_CALLS - calls_left.value, 0)
        calls_left.value += _thread.added


def limit() -> int:
    """Return the limit that `sys.getrecursionlimit()` returns to the program."""
    return _State.limit if _State.entered else sys.getrecursionlimit()


def set_limit(limit: int) -> None:
    """Set the limit, as `sys.setrecursionlimit(limit)` does for the program."""
    sys.setrecursionlimit(limit * _NATIVE_FRAMES if isinstance(limit, int) and 0 < limit < 1 << 26 else limit)
    _State.limit = limit
