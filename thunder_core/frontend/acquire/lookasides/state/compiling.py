"""`torch.compiler.is_compiling`: libraries call it to decide whether to deviate from the eager code path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(torch.compiler.is_compiling)
def is_compiling(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return eager's answer, no, unless a detour says yes to avoid a value that is not available in a trace."""
    failing = acquisition.recorder.failure is not None
    return lambda: acquisition.detours.asked(acquisition.machine.frame, is_failing=failing)
