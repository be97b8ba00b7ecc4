"""Progress bars of tqdm: objects that the first bar of a process creates are not part of a program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import late_lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken


@late_lookaside("tqdm.std:tqdm.get_lock")
def get_lock(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken:
    """Make the lock and the thread that all bars share, as the first bar would, and interpret the function."""
    bar: Any = sys.modules["tqdm.std"].tqdm
    if not (hasattr(bar, "_lock") and bar.monitor):
        bar((), disable=True)
    return NOT_TAKEN
