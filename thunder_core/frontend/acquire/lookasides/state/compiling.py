"""`torch.compiler.is_compiling`: libraries ask it before they take another path than in eager."""

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
    """The answer is eager's, which is no; it is yes where that leads around a value which the trace cannot have."""
    failing = acquisition.recorder.failure is not None
    return lambda: acquisition.detours.asked(acquisition.machine.frame, is_failing=failing)
