"""Progress bars of tqdm: what the first bar of a process makes is no part of a program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import late_lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@late_lookaside("tqdm.std:tqdm.get_lock")
def get_lock(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Make the lock and the thread that all bars share, as the first bar would, and interpret the function."""
    bar: Any = sys.modules["tqdm.std"].tqdm
    if not (hasattr(bar, "_lock") and bar.monitor):
        bar((), disable=True)
    return None
