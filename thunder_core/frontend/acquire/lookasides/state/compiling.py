"""`torch.compiler.is_compiling`: libraries call it to decide whether to deviate from the eager code path."""

from __future__ import annotations

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(torch.compiler.is_compiling)
def is_compiling(run: TracedRun, /) -> bool:
    """Return False, as in eager PyTorch.

    At the places of `run.options.detours`, return True, so that the library takes the path for compilers. These are the
    last calls before the program read a value that is not available in a trace.
    """
    return run.options.detours.answer(run.machine.frame, is_failing=run.recorder.failure is not None)
