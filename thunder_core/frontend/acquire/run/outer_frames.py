"""The callers of the program: eager PyTorch makes the call if the program reads their frames or their exception."""

from __future__ import annotations

import sys
from types import FrameType

from thunder_core.frontend.acquire.traced_run import TracedRun


def require_frame_of_program(run: TracedRun, owner: object, value: object) -> None:
    """Leave to eager PyTorch a program that goes from its outermost frame to `value`, the frame of its caller."""
    if type(owner) is FrameType and value is run.machine.outside:
        leave_callers_to_eager(run, "follows `f_back`, which reads")


def leave_callers_to_eager(run: TracedRun, action: str) -> None:
    """Leave to eager PyTorch a program that reads the frames of its callers, unless PyTorch's own code reads them."""
    frame = run.machine.frame
    if frame is not None and not run.code_origins.is_library(frame.code):
        run.leave_to_eager(
            f"the program {action} the frames of its callers",
            "read them outside the compiled program, or read only frames of the program with `sys._getframe`",
        )


def guard_handled_exception(run: TracedRun, error: BaseException | None) -> None:
    """Guard that the caller of the program handles no exception, if the program reads which exception is handled.

    `error` is the exception that the program finds. If it is the caller's, eager PyTorch makes the call.
    """
    if error is not run.process_before.handled:
        return
    run.settings.answers["sys.exception()"] = run.process_before.handled
    if error is not None:
        run.leave_to_eager(
            "the program reads the exception that its caller handles",
            "pass the exception to the compiled program as an argument",
        )


def guard_present_exception(run: TracedRun) -> None:
    """Guard that the caller handles no exception, if the program itself handles none and asks for it."""
    guard_handled_exception(run, sys.exception())
