"""Checks of a program's output at its end: whether the program may read the output, or change what is shown."""

from __future__ import annotations

import sys

import torch

from thunder_core.frontend.acquire.traced_run import TracedRun

FIX_FOR_LOGS = "print and log outside the compiled program"
LATER_WRITES_EDGE = "print of an object from outside whose tensors may be written to after this line"


def require_unread_output(run: TracedRun) -> None:
    """Request that eager PyTorch makes the call if the program may read what it prints or logs."""
    for stream in run.output.streams:
        path = run.outside.path_of(stream)
        if path is not None and (path.parent is None or path.parent.value is not sys):
            run.leave_to_eager("the program prints to a stream that the program also uses", FIX_FOR_LOGS)
    for handler in run.output.log_handlers:
        stream = getattr(handler, "stream", None)
        if run.outside.path_of(handler) or (not run.process_before.has_stream(stream) and run.outside.path_of(stream)):
            run.leave_to_eager("the program logs to a stream or handler that the program also uses", FIX_FOR_LOGS)


def note_later_writes(run: TracedRun) -> None:
    """Report a sharp edge if the program may write to tensors of an outside object that the epilogue will show."""
    bsyms = run.recorder.bound_symbols
    for index, value, where in run.output.printed:
        state = getattr(value, "__dict__", None)
        has_tensors = isinstance(state, dict) and any(map(is_tensor, state.values()))
        if has_tensors and not isinstance(value, torch.nn.Module) and any(bsym.mutates for bsym in bsyms[index:]):
            run.edges.note(LATER_WRITES_EDGE, where, loud=True)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)
