"""asyncio: a coroutine that only computes runs immediately, without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any, NoReturn

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken

LOOP_GETTERS = tuple(
    getattr(asyncio.events, name)
    for name in ("get_running_loop", "get_event_loop", "_get_event_loop")
    if hasattr(asyncio.events, name)
)


@lookaside(asyncio.run)
def run_coroutine(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Run `asyncio.run` of a coroutine in a new context. asyncio refuses other arguments."""
    if not args or not inspect.iscoroutine(args[0]) or asyncio._get_running_loop() is not None:
        return run.machine.call_uninterpreted(asyncio.run, args, kwargs)
    return run.context_variables.run_in_copy(drive_all, run, args[0])


def drive_all(run: TracedRun, main: object) -> Any:
    """Run a coroutine to its end, and then close the asynchronous generators that it left open, as event loops do."""
    opened_generators: list[Any] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=opened_generators.append, finalizer=lambda generator: None)
    try:
        with run.calls.run_event_loop():
            try:
                return drive(run, main)
            finally:
                for generator in opened_generators:
                    drive(run, generator.aclose())
    finally:
        sys.set_asyncgen_hooks(*hooks)


def drive(run: TracedRun, coroutine: Any) -> Any:
    """Run a coroutine to its end. If it yields to other tasks, resume it at once, because there are no other tasks."""
    while True:
        try:
            awaited = run.machine.call_unreported(coroutine.send, (None,), {})
        except StopIteration as stop:
            return stop.value
        if awaited is not None:
            coroutine.close()
            leave_to_eager(run, f"a coroutine waits for {object_of_class(type(awaited))}")


@lookaside(*LOOP_GETTERS, asyncio.current_task)
def get_loop(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken:
    """Leave the call to eager PyTorch, because there is no event loop while a program is traced."""
    return make_loop(run) if run.calls.asyncio_depth else NOT_TAKEN


@lookaside(asyncio.new_event_loop)
def make_loop(run: TracedRun, /) -> NoReturn:
    """Leave a program that makes an event loop to eager PyTorch."""
    leave_to_eager(run, "the program needs an event loop, to wait or to run tasks")


def users_line(frame: Any) -> SourceLine | None:
    """Return the innermost line that belongs to the user and not to asyncio."""
    while frame is not None and not is_users_code(frame.code):
        frame = frame.back
    return None if frame is None else SourceLine(frame.filename, frame.lineno, frame.code.co_qualname)


def leave_to_eager(run: TracedRun, action: str) -> NoReturn:
    """Leave a program that uses an event loop to eager PyTorch."""
    run.leave_to_eager(
        f"{action}, which is not possible in a trace",
        "await coroutines that only compute, or compile the function that they call instead of its event loop",
        users_line(run.machine.frame),
    )
