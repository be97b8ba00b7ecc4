"""Frames outside of the program: eager PyTorch makes the call of a program that reads the frames of its callers."""

from __future__ import annotations

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
